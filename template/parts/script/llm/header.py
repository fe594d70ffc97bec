"""Train a GPT on the bytes of a text file, with every optimization that fits it.

    python train.py                              # train on the source of Python's standard library
    python train.py --data text.txt --epochs 5   # train on your text
    python train.py --resume                     # continue the newest run, bit for bit
    python train.py --benchmark                  # measure what the optimizations gain here

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data, model, step, checkpoints,
training, benchmark, command line.
Shapes: B blocks in a batch, T tokens, C width, H heads, D = C / H, V padded vocabulary.
"""

import argparse
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
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
