/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Copyright: (c) 2026, kproxy.dataplane contributors */
/* The filter in front of the flow table, for one family. Included with FAMILY 4 and 6 after tuple_family.h. */

INLINE __u64 NAME(mix_end)(const struct NAME(addr) *addr, __be16 port)
{
#if FAMILY == 4
	return ((__u64)addr->w[0] << 16 | port) * FILTER_MIX;
#else
	return ((__u64)addr->w[1] << 32 | addr->w[0]) * FILTER_MIX +
	       ((__u64)addr->w[3] << 32 | addr->w[2]) * FILTER_MIX6 + port * FILTER_MIX_PORT;
#endif
}

INLINE __u32 NAME(slot_of)(const struct NAME(tuple) *tuple)
{
	return filter_slot(NAME(mix_end)(&tuple->src, tuple->sport), NAME(mix_end)(&tuple->dst, tuple->dport));
}

/* Whether there may be an entry of this tuple, or of the opposite one, at either hook. */
INLINE bool NAME(may_have_flow)(const struct NAME(tuple) *tuple)
{
	const struct flow_filter *filter = the_filter();
	const struct filter_array *array;
	__u32 slot;

	if (!filter || !(filter->state & FILTER_IN_USE))
		return true;
	array = &filter->arrays[filter->state & FILTER_ARRAY];
	slot = NAME(slot_of)(tuple);
	return array->groups[slot >> FILTER_GROUP_BITS] && array->slots[slot];
}

INLINE void NAME(mark_flow)(const struct NAME(tuple) *tuple)
{
	struct flow_filter *filter = the_filter();
	__u32 slot = NAME(slot_of)(tuple);

	if (!filter)
		return;
	for (int i = 0; i < 2; i++) {
		filter->arrays[i].groups[slot >> FILTER_GROUP_BITS] = 1;
		filter->arrays[i].slots[slot] = 1;
	}
}
