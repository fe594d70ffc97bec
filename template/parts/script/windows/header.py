"""Train a forecaster on windows in an HDF5 file, with every optimization that fits it.

    python train.py                                 # train on synthetic windows
    python train.py --data windows.h5 --epochs 5    # features (N, T, F) and targets (N, H)
    python train.py --resume                        # continue the newest run, bit for bit
    python train.py --benchmark                     # measure what the optimizations gain here

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data with the loader, model, step,
checkpoints, training, benchmark, command line. `ChunkDataLoader` also works alone.
Shapes: N windows in the file, B in a batch, T rows of history, F features, H targets.
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
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
