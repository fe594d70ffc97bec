"""Train a network on the rows of a CSV file, with every optimization that fits it.

    python train.py                                                     # train on synthetic rows
    python train.py --data table.csv --target price --task regression   # train on your table
    python train.py --resume                                            # continue the newest run
    python train.py --benchmark                                         # measure the optimizations

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data, model, step, checkpoints,
training, benchmark, command line.
Shapes: B rows in a batch, F columns of numbers, C columns of categories, K classes.
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
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
