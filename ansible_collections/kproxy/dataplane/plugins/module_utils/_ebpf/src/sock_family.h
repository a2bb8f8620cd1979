/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/*
 * Translation at the socket, for one family. Included with FAMILY 4 and 6.
 * A socket is translated only where the answer does not depend on what cannot be known before routing has chosen a
 * source address; every other call is left alone, and the packet path decides with the address in hand.
 */

/* What the application dialled, by socket and by the endpoint it was given: recvmsg and getpeername restore it. */
struct NAME(socket_key) {
	__u64 cookie;
	struct NAME(addr) addr;
	__be16 port;
	__u16 pad;
#if FAMILY == 6
	__u32 pad6;
#endif
};

struct NAME(socket_value) {
	struct NAME(addr) addr;
	__be16 port;
	__u8 protocol;
	__u8 pad;
	__u32 service;
};

/*
 * One entry for every endpoint of an open UDP socket, and for TCP sockets that have no place in connected4/6. An evicted
 * entry shows the endpoint's address to the application. The loader may raise the size.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct NAME(socket_key));
	__type(value, struct NAME(socket_value));
} NAME(sockets) SEC(".maps");

INLINE void NAME(fill_socket_key)(void *ctx, const struct NAME(addr) *addr, __be16 port,
				  struct NAME(socket_key) *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->cookie = bpf_get_socket_cookie(ctx);
	key->addr = *addr;
	key->port = port;
}

INLINE bool NAME(refuses_loopback)(__be16 port, __u8 protocol)
{
	struct NAME(frontend_key) key = { .port = port, .protocol = protocol, .pad = 0 };
	const struct frontend_value *node_port = bpf_map_lookup_elem(&NAME(frontends), &key);

	return node_port && (node_port->flags & FRONTEND_REFUSE_LOOPBACK);
}

/* Note that a socket has dialled a frontend and is led to `endpoint`. */
INLINE void NAME(remember)(struct bpf_sock_addr *ctx, const struct NAME(addr) *addr, __be16 port,
			   const struct NAME(endpoint) *endpoint, __u32 service)
{
	struct NAME(socket_value) dialled = { .addr = *addr, .port = port, .protocol = ctx->protocol, .pad = 0,
					      .service = service };
	struct NAME(socket_key) key;

	NAME(fill_socket_key)(ctx, &endpoint->addr, endpoint->port, &key);
	if (dialled.protocol == PROTOCOL_TCP) {
		struct NAME(connected) *place = NAME(place_of)(key.cookie);

		if (!place)
			return;
		if (NAME(take_place)(place, key.cookie)) {
			place->dialled = *addr;
			place->dialled_port = port;
			place->endpoint = endpoint->addr;
			place->endpoint_port = endpoint->port;
			return;
		}
		__sync_fetch_and_add(&place->elsewhere, 1);
	}
	bpf_map_update_elem(&NAME(sockets), &key, &dialled, BPF_ANY);
}

/* Rewrite `addr` and `port` to an endpoint, or say why not. `bound` is the socket's own address, 0 if not bound. */
INLINE enum socket_verdict NAME(translate)(struct bpf_sock_addr *ctx, struct NAME(addr) *addr, __be16 *port,
					   const struct NAME(addr) *bound)
{
	const struct settings *node = node_settings();
	__u8 protocol = ctx->protocol;
	const struct frontend_value *frontend;
	struct NAME(endpoint) chosen;
	struct NAME(addr) client = *bound;
	enum client kind;
	__u8 answer;

	if (!node || (protocol != PROTOCOL_TCP && protocol != PROTOCOL_UDP))
		return SOCKET_PASS;
	kind = bpf_get_netns_cookie(ctx) == node->host_netns ? CLIENT_NODE : CLIENT_POD;
	if (kind == CLIENT_POD && (node->flags & HOST_ONLY))
		return SOCKET_PASS;

	/* The node's own sockets leave by its primary address unless bound; a pod's address shows on the packet only. */
	if (kind == CLIENT_NODE && NAME(unset_addr)(&client))
		NOINLINE_COPY(&client.w, &node->NAME(node));
	frontend = NAME(exact_frontend)(addr, *port, protocol);
	if (frontend && (frontend->flags & FRONTEND_RANGES) &&
	    (NAME(unset_addr)(&client) || !NAME(in_ranges)(frontend, &client)))
		return SOCKET_PASS;
	frontend = NAME(find_frontend)(frontend, addr, *port, protocol, kind);
	if (!frontend) {
		if (kind == CLIENT_NODE && NAME(loopback_addr)(addr) && NAME(refuses_loopback)(*port, protocol))
			return SOCKET_REFUSE;
		if (!bpf_map_lookup_elem(&NAME(cluster_ips), addr))
			return SOCKET_PASS;
		count_reason(REASON_UNDEFINED_PORT);
		return SOCKET_REFUSE;
	}

	answer = frontend->answer[kind];
	/* Whether a namespace is a pod in the sense of detectLocalMode shows on the packet; only equal answers count. */
	if (kind == CLIENT_POD && ((answer ^ frontend->answer[CLIENT_OUTSIDER]) & (VERDICT_MASK | LOCAL_ONLY)))
		return SOCKET_PASS;
	if ((answer & VERDICT_MASK) == VERDICT_REJECT) {
		count_reason(REASON_NO_ENDPOINT);
		return SOCKET_REFUSE;
	}
	/* Silence cannot be told at the socket: the packet path swallows it. */
	if ((answer & VERDICT_MASK) != VERDICT_DNAT)
		return SOCKET_PASS;
	if ((frontend->flags & FRONTEND_AFFINITY) && NAME(unset_addr)(&client))
		return SOCKET_PASS;
	if (!NAME(choose_endpoint)(frontend, !!(answer & LOCAL_ONLY), &client, NULL, &chosen)) {
		count_reason(REASON_MISSING_SLOT);
		return SOCKET_REFUSE;
	}

	NAME(remember)(ctx, addr, *port, &chosen, frontend->service);
	*addr = chosen.addr;
	*port = chosen.port;
	return SOCKET_TRANSLATED;
}

/* Put back what the application dialled; false if this peer was not ours. */
INLINE bool NAME(restore)(struct bpf_sock_addr *ctx, struct NAME(addr) *addr, __be16 *port)
{
	const struct NAME(socket_value) *dialled;
	struct NAME(socket_key) key;

	NAME(fill_socket_key)(ctx, addr, *port, &key);
	if (ctx->protocol == PROTOCOL_TCP) {
		const struct NAME(connected) *place = NAME(place_of)(key.cookie);

		if (place && place->cookie == key.cookie) {
			if (place->endpoint_port != *port || !NAME(same_addr)(&place->endpoint, addr))
				return false;
			*addr = place->dialled;
			*port = place->dialled_port;
			return true;
		}
	}
	dialled = bpf_map_lookup_elem(&NAME(sockets), &key);
	if (!dialled)
		return false;
	*addr = dialled->addr;
	*port = dialled->port;
	return true;
}

/*
 * Forget that a socket has reached this peer through a frontend: it dials the peer itself, or it is closed and gives back
 * what it holds. An unconnected socket has no peer any more; its entries go when they are the oldest.
 */
INLINE void NAME(forget)(void *ctx, __u8 protocol, const struct NAME(addr) *addr, __be16 port, bool closed)
{
	struct NAME(connected) *place = NULL;
	struct NAME(socket_key) key;

	NAME(fill_socket_key)(ctx, addr, port, &key);
	if (protocol == PROTOCOL_TCP) {
		place = NAME(place_of)(key.cookie);
		if (!place)
			return;
		if (place->cookie == key.cookie) {
			place->endpoint_port = 0;
			if (closed)
				__sync_fetch_and_add(&place->taken, -1);
		}
		if (!place->elsewhere)
			return;
	}
	if (!port || !bpf_map_lookup_elem(&NAME(sockets), &key))
		return;
	if (!bpf_map_delete_elem(&NAME(sockets), &key) && place)
		__sync_fetch_and_add(&place->elsewhere, -1);
}

/* Is `port` a NodePort that a bind to `addr` would shadow? Loopback and foreign addresses stay free. */
INLINE bool NAME(shadows_node_port)(const struct NAME(addr) *addr, __be16 port, __u8 protocol)
{
	struct NAME(frontend_key) key = { .port = port, .protocol = protocol, .pad = 0 };

	if (!NAME(unset_addr)(addr) && !bpf_map_lookup_elem(&NAME(node_addrs), addr))
		return false;
	return bpf_map_lookup_elem(&NAME(frontends), &key);
}
