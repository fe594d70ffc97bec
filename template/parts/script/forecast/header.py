"""Train one forecaster for many series in a CSV file, with every optimization that fits it.

    python train.py                                             # train on synthetic shops
    python train.py --data sales.csv --series shop --known promotion
    python train.py --resume                                    # continue the newest run
    python train.py --benchmark                                 # measure the optimizations

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data, model, step, checkpoints,
training, benchmark, command line.
Shapes: B windows in a batch, T rows of history, H rows of horizon, C columns, G target columns, K
columns whose future is known, S series.
"""

import argparse
import csv
import difflib
import gzip
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
import time
import unicodedata
import zlib
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
from torch.utils.checkpoint import checkpoint
