#!/bin/sh
# Addresses and routes as a routed CNI plugin would leave them: pod ranges by the other machines, IPv6 on the private
# network, and a default route, without which connecting to a virtual address fails before any rule can translate it.
set -eu
. /etc/kproxy-lab/fabric
device=$(ip -oneline -4 address show | awk '$4 ~ /^192\.168\.56\./ { print $2; exit }')
ip address replace "fd00:77::$NUMBER/64" dev "$device" nodad
ip -6 route replace default via fd00:77::1 dev "$device" metric 4096
for peer in $PEERS; do
    ip route replace "10.244.$peer.0/24" via "192.168.56.$peer"
    ip -6 route replace "fd00:10:244:$peer::/64" via "fd00:77::$peer"
done
