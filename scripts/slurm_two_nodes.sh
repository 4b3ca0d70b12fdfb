#!/bin/sh
# A SLURM cluster of two nodes on this machine, for as long as a command runs:
#
#     apt-get install -y slurmctld slurmd slurm-client munge
#     export STEPGUARD_LAUNCHER='srun --nodes=2 --ntasks-per-node=1'
#     sudo -E scripts/slurm_two_nodes.sh python -m stepguard run factories:ranks device=cpu --gpus 2
#
# Needs root, since slurmd does. Configuration, keys, logs and state lie in a temporary folder; when
# the command has ended, its status is this script's, and nothing of the cluster is left. A cluster
# that is already here is not touched: ports, sockets and files are this one's own.
set -eu

[ "$(id -u)" = 0 ] || { echo "slurmd needs root: sudo $0 ..." >&2; exit 2; }
for program in slurmctld slurmd srun sinfo munged; do
    command -v "$program" > /dev/null || {
        echo "$program is missing: apt-get install -y slurmctld slurmd slurm-client munge" >&2
        exit 2
    }
done

folder=$(mktemp -d /tmp/slurm-two-nodes.XXXXXX)
chmod 755 "$folder" # munge refuses a socket that others cannot reach
mkdir "$folder/state" "$folder/n1" "$folder/n2"
host=$(hostname -s)

stop() {
    for name in n1 n2 slurmctld munge; do
        [ ! -s "$folder/$name.pid" ] || kill "$(cat "$folder/$name.pid")" 2> /dev/null || true
    done
    sleep 1
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 600 "$folder/munge.key"
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed"

cat > "$folder/slurm.conf" << CONF
ClusterName=two
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${SLURM_TWO_NODES_PORT:-16817}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdPidFile=$folder/%n.pid
SlurmdLogFile=$folder/%n.log
SlurmdSpoolDir=$folder/%n
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((${SLURM_TWO_NODES_PORT:-16817} + 1)) CPUs=8
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((${SLURM_TWO_NODES_PORT:-16817} + 2)) CPUs=8
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF" -N n1
slurmd -f "$SLURM_CONF" -N n2

waited=0
until [ "$(sinfo --noheader --Node --states=idle 2> /dev/null | wc -l)" = 2 ]; do
    waited=$((waited + 1))
    [ "$waited" -lt 60 ] || { cat "$folder"/*.log >&2; echo "the nodes did not come up" >&2; exit 1; }
    sleep 1
done

# In an allocation of both nodes, as a batch script has it: with it srun starts at once.
salloc --quiet --exclusive --nodes=2 --ntasks-per-node=1 "$@"
