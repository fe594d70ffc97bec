"""Predict the daily range, return or volatility of stocks, with every optimization that fits it.

    python train.py                           # train on synthetic stocks
    python train.py --data prices --epochs 5  # a folder with a CSV file for each stock
    python train.py --resume                  # continue the newest run, bit for bit
    python train.py --benchmark               # measure what the optimizations gain here

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data with the graphs, model, step,
checkpoints, training, benchmark, command line.
Shapes: B days in a batch, K seats for stocks, T days of the window, F features, k neighbors.
In layers: N nodes, E edges, H heads, C units of a head, W units of the model.
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
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
