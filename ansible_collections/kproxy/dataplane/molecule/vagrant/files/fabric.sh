#!/bin/sh
# IPv6 on the private network, and a default route for it: without one, connecting to a virtual address fails before any
# rule can translate it. The pods' own addresses are their units' business.
set -eu
. /etc/kproxy-lab/fabric
device=$(ip -oneline -4 address show | awk '$4 ~ /^192\.168\.56\./ { print $2; exit }')
ip address replace "fd00:77::$NUMBER/64" dev "$device" nodad
ip -6 route replace default via fd00:77::1 dev "$device" metric 4096
