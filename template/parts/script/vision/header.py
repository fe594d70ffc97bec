"""Train a network on images, with every optimization that fits it.

    python train.py                    # train on synthetic shapes
    python train.py --data photos/     # train on a folder with a folder for each class
    python train.py --resume           # continue the newest run
    python train.py --benchmark        # measure the optimizations

Each run is a folder in runs/, and begins with a table of the optimizations that are on, and why.
This file is ordered from top to bottom: settings, optimizations, data, augmentation, model, step,
checkpoints, training, benchmark, command line.
Shapes: B images in a batch, H and W sides, C channels, K classes.
"""

import argparse
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
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
