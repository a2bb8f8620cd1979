/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Socket load balancing: the programs of the node's cgroup2 directory. A call to a frontend goes to an endpoint at once;
 * no packet is ever translated. IPv6 sockets that dial ::ffff:a.b.c.d are served from the IPv4 maps.
 */
#include "layout.h"

enum socket_verdict { SOCKET_PASS, SOCKET_TRANSLATED, SOCKET_REFUSE };

#define FAMILY 4
#define WORDS 1
#include "maps_family.h"
#include "select_family.h"
#include "connected_family.h"
#include "sock_family.h"
#undef FAMILY
#undef WORDS
#define FAMILY 6
#define WORDS 4
#include "maps_family.h"
#include "select_family.h"
#include "connected_family.h"
#include "sock_family.h"

/* Written by the loader before the section is frozen, so the verifier removes the branch a kernel cannot load. */
const volatile __u32 has_set_retval SEC(".rodata") = 1;

#define AF_INET 2
#define AF_INET6 10
#define ALLOW 1
#define DENY 0
#define MINUS_ECONNREFUSED (-111)
#define MINUS_EADDRINUSE (-98)

/* Without bpf_set_retval (< 5.18) the caller sees EPERM. */
INLINE int deny(int error)
{
	if (has_set_retval)
		bpf_set_retval(error);
	return DENY;
}

/* `connecting`: and not only one datagram is sent. */
INLINE int forward4(struct bpf_sock_addr *ctx, const struct addr4 *bound, bool connecting)
{
	struct addr4 addr = { { ctx->user_ip4 } };
	__be16 port = ctx->user_port;

	switch (translate4(ctx, &addr, &port, bound)) {
	case SOCKET_REFUSE:
		return deny(MINUS_ECONNREFUSED);
	case SOCKET_TRANSLATED:
		ctx->user_ip4 = addr.w[0];
		ctx->user_port = port;
		return ALLOW;
	default:
		if (connecting)
			forget4(ctx, ctx->protocol, &addr, port, false);
		return ALLOW;
	}
}

INLINE int backward4(struct bpf_sock_addr *ctx)
{
	struct addr4 addr = { { ctx->user_ip4 } };
	__be16 port = ctx->user_port;

	if (restore4(ctx, &addr, &port)) {
		ctx->user_ip4 = addr.w[0];
		ctx->user_port = port;
	}
	return ALLOW;
}

INLINE bool mapped_addr6(const struct addr6 *addr)
{
	return !addr->w[0] && !addr->w[1] && addr->w[2] == bpf_htonl(0xffff);
}

INLINE bool v4_mapped(const struct bpf_sock_addr *ctx)
{
	return !ctx->user_ip6[0] && !ctx->user_ip6[1] && ctx->user_ip6[2] == bpf_htonl(0xffff);
}

INLINE void read6(const struct bpf_sock_addr *ctx, struct addr6 *addr)
{
	addr->w[0] = ctx->user_ip6[0];
	addr->w[1] = ctx->user_ip6[1];
	addr->w[2] = ctx->user_ip6[2];
	addr->w[3] = ctx->user_ip6[3];
}

INLINE void write6(struct bpf_sock_addr *ctx, const struct addr6 *addr)
{
	ctx->user_ip6[0] = addr->w[0];
	ctx->user_ip6[1] = addr->w[1];
	ctx->user_ip6[2] = addr->w[2];
	ctx->user_ip6[3] = addr->w[3];
}

INLINE int forward6(struct bpf_sock_addr *ctx, const struct addr6 *bound, bool connecting)
{
	__be16 port = ctx->user_port;
	struct addr6 addr;

	if (v4_mapped(ctx)) {
		struct addr4 mapped = { { ctx->user_ip6[3] } };
		struct addr4 bound4 = { { bound->w[3] } };

		switch (translate4(ctx, &mapped, &port, &bound4)) {
		case SOCKET_REFUSE:
			return deny(MINUS_ECONNREFUSED);
		case SOCKET_TRANSLATED:
			ctx->user_ip6[3] = mapped.w[0];
			ctx->user_port = port;
			return ALLOW;
		default:
			if (connecting)
				forget4(ctx, ctx->protocol, &mapped, port, false);
			return ALLOW;
		}
	}
	read6(ctx, &addr);
	switch (translate6(ctx, &addr, &port, bound)) {
	case SOCKET_REFUSE:
		return deny(MINUS_ECONNREFUSED);
	case SOCKET_TRANSLATED:
		write6(ctx, &addr);
		ctx->user_port = port;
		return ALLOW;
	default:
		if (connecting)
			forget6(ctx, ctx->protocol, &addr, port, false);
		return ALLOW;
	}
}

INLINE int backward6(struct bpf_sock_addr *ctx)
{
	__be16 port = ctx->user_port;
	struct addr6 addr;

	if (v4_mapped(ctx)) {
		struct addr4 mapped = { { ctx->user_ip6[3] } };

		if (restore4(ctx, &mapped, &port)) {
			ctx->user_ip6[3] = mapped.w[0];
			ctx->user_port = port;
		}
		return ALLOW;
	}
	read6(ctx, &addr);
	if (restore6(ctx, &addr, &port)) {
		write6(ctx, &addr);
		ctx->user_port = port;
	}
	return ALLOW;
}

INLINE void bound4(const struct bpf_sock_addr *ctx, struct addr4 *bound)
{
	struct bpf_sock *sk = ctx->sk;

	bound->w[0] = sk ? sk->src_ip4 : 0;
}

INLINE void bound6(const struct bpf_sock_addr *ctx, struct addr6 *bound)
{
	struct bpf_sock *sk = ctx->sk;

	__builtin_memset(bound, 0, sizeof(*bound));
	if (!sk)
		return;
	bound->w[0] = sk->src_ip6[0];
	bound->w[1] = sk->src_ip6[1];
	bound->w[2] = sk->src_ip6[2];
	bound->w[3] = sk->src_ip6[3];
}

SEC("cgroup/connect4")
int kp_connect4(struct bpf_sock_addr *ctx)
{
	struct addr4 bound;

	bound4(ctx, &bound);
	return forward4(ctx, &bound, true);
}

SEC("cgroup/sendmsg4")
int kp_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct addr4 bound = { { ctx->msg_src_ip4 } };

	if (unset_addr4(&bound))
		bound4(ctx, &bound);
	return forward4(ctx, &bound, false);
}

SEC("cgroup/recvmsg4")
int kp_recvmsg4(struct bpf_sock_addr *ctx)
{
	return backward4(ctx);
}

SEC("cgroup/getpeername4")
int kp_getpeername4(struct bpf_sock_addr *ctx)
{
	return backward4(ctx);
}

SEC("cgroup/connect6")
int kp_connect6(struct bpf_sock_addr *ctx)
{
	struct addr6 bound;

	bound6(ctx, &bound);
	return forward6(ctx, &bound, true);
}

SEC("cgroup/sendmsg6")
int kp_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct addr6 bound;

	bound.w[0] = ctx->msg_src_ip6[0];
	bound.w[1] = ctx->msg_src_ip6[1];
	bound.w[2] = ctx->msg_src_ip6[2];
	bound.w[3] = ctx->msg_src_ip6[3];
	if (unset_addr6(&bound))
		bound6(ctx, &bound);
	return forward6(ctx, &bound, false);
}

SEC("cgroup/recvmsg6")
int kp_recvmsg6(struct bpf_sock_addr *ctx)
{
	return backward6(ctx);
}

SEC("cgroup/getpeername6")
int kp_getpeername6(struct bpf_sock_addr *ctx)
{
	return backward6(ctx);
}

SEC("cgroup/sock_release")
int kp_sock_release(struct bpf_sock *sk)
{
	/* Read as a whole: before Linux 5.18 the field had the width of a word. */
	__be16 port = *(const volatile __u32 *)&sk->dst_port;
	__u8 protocol = sk->protocol;

	/* A TCP socket whose connect() failed has no peer, and still a place. */
	if (protocol != PROTOCOL_TCP && (protocol != PROTOCOL_UDP || !port))
		return ALLOW;
	if (sk->family == AF_INET) {
		struct addr4 addr = { { sk->dst_ip4 } };

		forget4(sk, protocol, &addr, port, true);
	} else if (sk->family == AF_INET6) {
		struct addr6 addr = { { sk->dst_ip6[0], sk->dst_ip6[1], sk->dst_ip6[2], sk->dst_ip6[3] } };
		struct addr4 mapped = { { addr.w[3] } };

		/* It may have dialled both families, one after the other. */
		forget4(sk, protocol, &mapped, mapped_addr6(&addr) ? port : 0, true);
		forget6(sk, protocol, &addr, port, true);
	}
	return ALLOW;
}

/* A host process must not take a port that the node answers as a NodePort: its clients would never reach it. */
SEC("cgroup/post_bind4")
int kp_post_bind4(struct bpf_sock *sk)
{
	const struct settings *node = node_settings();
	struct addr4 addr = { { sk->src_ip4 } };

	if (!node || !(node->flags & PROTECT_NODE_PORTS) || bpf_get_netns_cookie(sk) != node->host_netns)
		return ALLOW;
	if (!shadows_node_port4(&addr, bpf_htons(sk->src_port), sk->protocol))
		return ALLOW;
	count_reason(REASON_NODE_PORT_BIND);
	return deny(MINUS_EADDRINUSE);
}

SEC("cgroup/post_bind6")
int kp_post_bind6(struct bpf_sock *sk)
{
	const struct settings *node = node_settings();
	const struct addr4 any4 = { { 0 } };
	struct addr6 addr = { { sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3] } };

	if (!node || !(node->flags & PROTECT_NODE_PORTS) || bpf_get_netns_cookie(sk) != node->host_netns)
		return ALLOW;
	/* [::] takes the IPv4 side too, unless IPV6_V6ONLY, which a program cannot see. */
	if (!shadows_node_port6(&addr, bpf_htons(sk->src_port), sk->protocol) &&
	    !(unset_addr6(&addr) && shadows_node_port4(&any4, bpf_htons(sk->src_port), sk->protocol)))
		return ALLOW;
	count_reason(REASON_NODE_PORT_BIND);
	return deny(MINUS_EADDRINUSE);
}

char _license[] SEC("license") = "Dual BSD/GPL";
