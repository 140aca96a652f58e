/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Counts what leaves by a leg's interface and is not data of the connections that have explicit rates on this
 * leg: UDP, QUIC, connections that are not split, and acknowledgements. If the controller of these rates says
 * at which rate that may leave, packets beyond it are marked or dropped (aqm_core.h).
 *
 * Packets of this host know their socket at the egress, forwarded ones have none. Bytes are those of IP
 * packets, with the headers of each, as they are on the wire.
 */
#include "kernel.h"
#include "aqm_core.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAX_LEGS 64
/* Flows are told apart by a hash of so many values, as RFC 8290 does it by default. */
#define BUCKETS 1024

#define TC_ACT_SHOT 2
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_ICMPV6 58

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
	u64 marked;    /* packets */
	u64 dropped;
};

/* What may leave over a leg, written by the controller. */
struct limit {
	u64 until_ns;    /* it holds until then, by CLOCK_MONOTONIC: a controller that hangs drops nothing */
	u64 rate;        /* bytes per second */
	u32 target_us;
	u32 interval_us;
	u64 may_drop;
	u64 judged[BUCKETS / 64]; /* a bit for each bucket: its flow has more than its fair part */
};

/* The bytes that have left, by a hash of their flow. */
struct flows {
	u64 bytes[BUCKETS];
};

struct queue {
	struct bpf_spin_lock lock;
	u32 reserved;
	struct aqm aqm;
};

/* The packet as its headers say it. */
struct packet {
	u64 now_us;
	u32 bytes;   /* of IP, of all its segments */
	u32 segments;
	u32 ecn;     /* it is ECN-capable */
	u32 is_data; /* neither an acknowledgement nor a message about errors */
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_LEGS);
	__type(key, u32);
	__type(value, struct limit);
} limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_LEGS);
	__type(key, u32);
	__type(value, struct flows);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LEGS);
	__type(key, u32);
	__type(value, struct queue);
} queues SEC(".maps");

/*
 * Zero, which the verifier does not know: it would follow the rest of the program for each leg that a loop
 * may have found.
 */
u32 zero;

/* Whether a TCP segment carries data. */
static inline bool has_data(struct __sk_buff *skb, const struct sk_buff *kernel, u32 to_data)
{
	u32 tcp = BPF_CORE_READ(kernel, transport_header) - to_data;
	u8 offset;

	if (bpf_skb_load_bytes(skb, tcp + 12, &offset, sizeof(offset)))
		return false;
	return skb->len > tcp + (offset >> 4) * 4;
}

/*
 * The number of the leg whose connection has sent this, or MAX_LEGS: acknowledgements are nobody's. All that a
 * socket of UDP sends that is a leg's has a rate.
 */
static inline u32 sender(struct __sk_buff *skb, const struct sk_buff *kernel, u32 to_data)
{
	struct bpf_sock *sk = skb->sk;
	struct membership *member = NULL;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk)
		member = bpf_sk_storage_get(&members, sk, 0, 0);
	if (!member)
		return MAX_LEGS;
	return sk->protocol == IPPROTO_UDP || has_data(skb, kernel, to_data) ? member->leg : MAX_LEGS;
}

/* Reads what a verdict depends on. What cannot be read is not judged. */
static inline void read_headers(struct packet *p, struct __sk_buff *skb, const struct sk_buff *kernel,
				u32 link, u32 to_data)
{
	u8 head[10], protocol;

	if (bpf_skb_load_bytes(skb, link, head, sizeof(head)))
		return;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		p->ecn = head[1] & 3;
		protocol = head[9];
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		p->ecn = head[1] >> 4 & 3;
		protocol = head[6];
	} else {
		return;
	}
	if (protocol == IPPROTO_TCP)
		p->is_data = has_data(skb, kernel, to_data);
	else
		p->is_data = protocol != IPPROTO_ICMP && protocol != IPPROTO_ICMPV6;
}

/* What becomes of a packet by the limit of a leg. */
static inline u32 verdict(u32 leg, const struct limit *limit, const struct packet *packet, u32 bucket)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, &leg);
	struct aqm_packet p = {};

	if (!queue)
		return AQM_PASS;
	p.now_us = packet->now_us;
	p.rate = limit->rate;
	p.bytes = packet->bytes;
	p.target_us = limit->target_us;
	p.interval_us = limit->interval_us;
	p.ecn = packet->ecn != 0;
	p.may_drop = limit->may_drop != 0;
	p.judged = packet->is_data && (p.ecn || p.may_drop) &&
		   limit->judged[bucket / 64 % (BUCKETS / 64)] >> bucket % 64 & 1;
	bpf_spin_lock(&queue->lock);
	aqm_step(&queue->aqm, &p);
	bpf_spin_unlock(&queue->lock);
	return p.verdict;
}

/* Carries it out, and counts it. */
static inline int obey(struct __sk_buff *skb, struct count *count, u32 verdict, u32 segments)
{
	if (verdict == AQM_DROP) {
		__sync_fetch_and_add(&count->dropped, segments);
		return TC_ACT_SHOT;
	}
	/* A packet whose bytes are another's as well cannot be marked. */
	if (verdict == AQM_MARK && bpf_skb_ecn_set_ce(skb))
		__sync_fetch_and_add(&count->marked, segments);
	return TCX_NEXT;
}

/* Counts a packet that is nobody's who has a rate for its flow, and judges it if there is a limit. */
static inline int judge(struct __sk_buff *skb, u32 leg, struct packet *packet)
{
	struct limit *limit = bpf_map_lookup_elem(&limits, &leg);
	struct flows *of_leg = bpf_map_lookup_elem(&flows, &leg);
	struct count *count = bpf_map_lookup_elem(&counts, &leg);
	u64 now_ns = bpf_ktime_get_ns();
	u32 bucket = bpf_get_hash_recalc(skb) % BUCKETS;

	if (!limit || !of_leg || !count || limit->until_ns <= now_ns || !limit->rate)
		return TCX_NEXT;
	__sync_fetch_and_add(&of_leg->bytes[bucket % BUCKETS], packet->bytes);
	packet->now_us = now_ns / 1000;
	return obey(skb, count, verdict(leg, limit, packet, bucket), packet->segments);
}

/* Whether a leg is at the interface by which a packet leaves. */
static inline bool is_here(const struct count *count, const struct __sk_buff *skb, u64 network)
{
	return count && count->interface == skb->ifindex && count->network == network;
}

/* Counts what leaves for the legs here, but not for the one whose connection has sent it. */
static inline void count_bytes(const struct __sk_buff *skb, u64 network, u32 from, u32 bytes)
{
	for (u32 leg = 0; leg < MAX_LEGS; leg++) {
		u32 key = leg;
		struct count *count = bpf_map_lookup_elem(&counts, &key);

		if (is_here(count, skb, network) && leg != from)
			__sync_fetch_and_add(&count->bytes, bytes);
	}
}

SEC("tc")
int cross_traffic(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);
	/* From `head` to the packet's first byte. */
	u32 to_data = BPF_CORE_READ(kernel, data) - BPF_CORE_READ(kernel, head);
	u32 link = BPF_CORE_READ(kernel, network_header) - to_data;
	struct packet packet = { .segments = skb->gso_segs ? skb->gso_segs : 1 };
	u64 network = BPF_CORE_READ(kernel, dev, nd_net.net, net_cookie);
	u32 from = sender(skb, kernel, to_data), at = MAX_LEGS + zero;
	int outcome = TCX_NEXT;

	if (skb->wire_len <= packet.segments * link)
		return TCX_NEXT;
	packet.bytes = skb->wire_len - packet.segments * link;
	for (u32 leg = 0; leg < MAX_LEGS && at == MAX_LEGS; leg++) {
		u32 key = leg;

		/* Of several legs at one interface, the first one judges. */
		if (is_here(bpf_map_lookup_elem(&counts, &key), skb, network))
			at = leg + zero;
	}
	if (at == MAX_LEGS)
		return TCX_NEXT;
	if (from == MAX_LEGS) {
		read_headers(&packet, skb, kernel, link, to_data);
		outcome = judge(skb, at, &packet);
	}
	if (outcome != TC_ACT_SHOT)
		count_bytes(skb, network, from, packet.bytes);
	return outcome;
}
