"""From text to sparsity-vs-generalization results: one stage a file, one concern a folder."""

import os
import warnings

# OpenMP threads that wait by spinning cost nothing on an idle machine, and on a busy one starve the thread
# they wait for (measured: analysis/LOG.md). They are told to give up spinning soon. Read when torch is
# loaded, so it stands before every other import.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# In a notebook without ipywidgets tqdm draws its bars as text, which serves as well.
warnings.filterwarnings("ignore", message="IProgress not found")
