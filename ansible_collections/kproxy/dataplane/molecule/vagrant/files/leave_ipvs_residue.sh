#!/bin/sh
# Load the dumps of a node whose kube-proxy ran in IPVS mode, after the interfaces that held its addresses.
set -eu
modprobe dummy
for name in kube-ipvs0 dummy-dns vip0; do ip link add "$name" type dummy; done
for address in 10.96.0.1 10.96.0.10 198.51.100.190 10.96.199.9; do ip address add "$address/32" dev kube-ipvs0; done
ip address add 169.254.25.10/32 dev dummy-dns
ip address add 198.51.100.200/32 dev vip0
ip address add 192.0.2.11/32 dev vip0
ipset restore </root/ipset-save.txt
iptables-restore </root/iptables-save.txt
ipvsadm --restore </root/ipvs-save.txt
