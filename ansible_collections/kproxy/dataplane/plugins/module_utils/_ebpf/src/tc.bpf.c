/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * The packet path: both directions of every device of the node, for connections that no socket of this node's cgroup
 * made. Packets that are not ours leave with TC_ACT_UNSPEC: from tcx, TC_ACT_OK would skip the clsact filters of others.
 *
 * What is refused at ingress is answered there (refuse_family.h), so nothing of the node has to look at packets for it.
 */
#include "refuse.h"

#define NOT_OURS (-1)			/* TC_ACT_UNSPEC */
#define SHOT 2				/* TC_ACT_SHOT */
#define TRANSLATE 0x100			/* not an action yet: the packet gets another tuple, and then it is not ours */
#define REFUSE 0x200			/* nor this: the packet is refused, for the reason in the lowest byte */

/* Linux 5.12; without it user space asks for no direct return, and nothing here needs to know how long a packet may be. */
const volatile __u32 has_check_mtu SEC(".rodata") = 1;

INLINE int drop(__u32 reason)
{
	count_reason(reason);
	return SHOT;
}

/*
 * A packet of a VLAN comes in by the device that carries the VLAN, and then once more by the VLAN's own. Translated at the first,
 * it would be taken for a connection to the endpoint itself at the second. Number 0 is a priority, and no VLAN.
 */
INLINE bool comes_again(const struct __sk_buff *skb, __u8 hook)
{
	return hook == HOOK_INGRESS && (skb->vlan_tci & 0x0fff);
}

#define FAMILY 4
#define WORDS 1
#define PROTOCOL_ICMP_OF_FAMILY PROTOCOL_ICMP
#define ICMP_ECHO_OF_FAMILY 8
#define PROTOCOL_TUNNEL_OF_FAMILY PROTOCOL_IPIP
#define TUNNEL_ROOM BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
#define ICMP_IS_ERROR(type) ((type) == 3 || (type) == 11 || (type) == 12)
#define ICMP_INNER_CSUM(csum) 0
#define ICMP_OUTER_CSUM(csum) 0
#include "maps_family.h"
#include "select_family.h"
#include "tuple_family.h"
#include "packet_family.h"
#include "filter_family.h"
#include "flow_family.h"
#include "open_family.h"
#include "dsr_family.h"
#include "dsr_tc_family.h"
#include "refuse_family.h"
#include "tc_family.h"
#undef FAMILY
#undef WORDS
#undef PROTOCOL_ICMP_OF_FAMILY
#undef ICMP_ECHO_OF_FAMILY
#undef PROTOCOL_TUNNEL_OF_FAMILY
#undef TUNNEL_ROOM
#undef ICMP_IS_ERROR
#undef ICMP_INNER_CSUM
#undef ICMP_OUTER_CSUM
#define FAMILY 6
#define WORDS 4
#define PROTOCOL_ICMP_OF_FAMILY PROTOCOL_ICMP6
#define ICMP_ECHO_OF_FAMILY 128
#define PROTOCOL_TUNNEL_OF_FAMILY PROTOCOL_IPV6
#define TUNNEL_ROOM BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
#define ICMP_IS_ERROR(type) ((type) < 128)
#define ICMP_INNER_CSUM(csum) (csum)
#define ICMP_OUTER_CSUM(csum) (csum)
#include "maps_family.h"
#include "select_family.h"
#include "tuple_family.h"
#include "packet_family.h"
#include "filter_family.h"
#include "flow_family.h"
#include "open_family.h"
#include "dsr_family.h"
#include "dsr_tc_family.h"
#include "refuse_family.h"
#include "tc_family.h"

INLINE int handle(struct __sk_buff *skb, __u8 hook)
{
	switch (skb->protocol) {
	case bpf_htons(ETHERTYPE_IPV4):
		return handle4(skb, hook);
	case bpf_htons(ETHERTYPE_IPV6):
		return handle6(skb, hook);
	default:
		return NOT_OURS;
	}
}

SEC("tcx/ingress")
int kp_ingress(struct __sk_buff *skb)
{
	return handle(skb, HOOK_INGRESS);
}

SEC("tcx/egress")
int kp_egress(struct __sk_buff *skb)
{
	return handle(skb, HOOK_EGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
