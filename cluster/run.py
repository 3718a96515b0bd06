"""What `ray submit CLUSTER.yaml cluster/run.py -- ARGUMENTS` runs on the head of a cluster.

The arguments are those of `privrl run`: a configuration's path and --out, as the head sees them. A
run that is there goes on, and what a new cluster would not find is refused, as in a job.
"""

import os
import sys

from distributed_privrl.cli import main

os.environ.setdefault("RAY_ADDRESS", "127.0.0.1:6379")
os.environ["PRIVRL_JOB"] = "1"
sys.argv[1:] = ["run", *sys.argv[1:], "--resume=auto"]
main()
