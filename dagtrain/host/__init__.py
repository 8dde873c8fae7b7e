"""The host's side of a cluster on Ethernet: frames over one UDP socket, training, checkpoints of what devices hold."""

from dagtrain.host.cluster import Cluster as Cluster
from dagtrain.host.connection import Settings as Settings
from dagtrain.host.wiring import read_wiring as read_wiring
