"""Train a T5 on pairs of texts, with every optimization that fits it.

    python train.py                                    # train on docstrings of Python's library
    python train.py --data pairs.tsv                   # source TAB target in each line
    python train.py --pretrained google-t5/t5-base     # start from pretrained weights
    python train.py --resume                           # continue the newest run, bit for bit
    python train.py --benchmark                        # measure what the optimizations gain here

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data, model, step, checkpoints,
training, benchmark, command line.
Shapes: B pairs in a batch, S source and T target tokens, C width, H heads, V padded vocabulary.
"""

import argparse
import ast
import difflib
import hashlib
import io
import json
import math
import os
import random
import re
import signal
import sqlite3
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.masking_utils import eager_mask
