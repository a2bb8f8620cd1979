/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* What both families need of packet formats. */
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "layout.h"

/* Bytes before the IP header: 14 on Ethernet, 0 on devices without a link header. Set by the loader for each kind. */
const volatile __u32 link_header SEC(".rodata") = 14;

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_FRAGMENT6 44

#define TCP_FLAGS_OFFSET 13
#define TCP_CSUM_OFFSET 16
#define UDP_CSUM_OFFSET 6
#define SCTP_CHUNK_OFFSET 12
#define SCTP_INIT 1
#define ICMP_CSUM_OFFSET 2
#define ICMP_INNER_OFFSET 8

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* The first four bytes of TCP and UDP. */
struct port_pair {
	__be16 sport;
	__be16 dport;
};
