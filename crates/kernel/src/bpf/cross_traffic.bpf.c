/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Counts what leaves by a leg's interface and is not data of the connections that have explicit rates on this
 * leg: UDP, QUIC, connections that are not split, and acknowledgements.
 *
 * Packets of this host know their socket at the egress, forwarded ones have none. Bytes are those of IP
 * packets, with the headers of each, as they are on the wire. All packets pass.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAX_LEGS 64

/* As in explicit.bpf.c, whose map this is. */
struct membership {
	u32 leg;
	u32 weight;
};

/* A leg, by its number; mapped by user space, which writes the interface. */
struct count {
	u64 interface; /* its index; 0: none */
	u64 network;   /* the network namespace of that index, by its cookie */
	u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct membership);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_LEGS);
	__type(key, u32);
	__type(value, struct count);
} counts SEC(".maps");

/* Whether a TCP segment of this host carries data: acknowledgements are nobody's who has a rate. */
static inline bool has_data(struct __sk_buff *skb, const struct sk_buff *kernel, u32 to_data)
{
	u32 tcp = BPF_CORE_READ(kernel, transport_header) - to_data;
	u8 offset;

	if (bpf_skb_load_bytes(skb, tcp + 12, &offset, sizeof(offset)))
		return false;
	return skb->len > tcp + (offset >> 4) * 4;
}

/* The number of the leg whose connection has sent this, or MAX_LEGS. */
static inline u32 sender(struct __sk_buff *skb, const struct sk_buff *kernel, u32 to_data)
{
	struct bpf_sock *sk = skb->sk;
	struct membership *member = NULL;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk)
		member = bpf_sk_storage_get(&members, sk, 0, 0);
	return member && has_data(skb, kernel, to_data) ? member->leg : MAX_LEGS;
}

SEC("tc")
int cross_traffic(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);
	/* From `head` to the packet's first byte. */
	u32 to_data = BPF_CORE_READ(kernel, data) - BPF_CORE_READ(kernel, head);
	u32 link = BPF_CORE_READ(kernel, network_header) - to_data;
	u32 packets = skb->gso_segs ? skb->gso_segs : 1;
	u64 network = BPF_CORE_READ(kernel, dev, nd_net.net, net_cookie);
	u32 from = sender(skb, kernel, to_data);

	for (u32 leg = 0; leg < MAX_LEGS; leg++) {
		u32 key = leg;
		struct count *count = bpf_map_lookup_elem(&counts, &key);

		if (!count || count->interface != skb->ifindex || count->network != network)
			continue;
		if (leg != from && skb->wire_len > packets * link)
			__sync_fetch_and_add(&count->bytes, skb->wire_len - packets * link);
	}
	return TCX_NEXT;
}
