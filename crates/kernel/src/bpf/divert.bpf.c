/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Takes marked packets that leave by an interface into a TUN device, from which user space reads them; and
 * lets packets that user space writes into that device arrive as if by the interface.
 *
 * On the way into the device the kernel removes the link header, cuts GSO packets and completes checksums,
 * because the device offers no offload. Packets without the mark are not touched.
 *
 * Several such programs may be at an interface, for another mark or of another process: the mark is cleared
 * by the first one that acts, so that no other one does.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define TC_ACT_SHOT 2
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define UDP_HEADER 8

/* In `address`: the interface has Ethernet headers; the bytes of its address are the lower ones. */
#define HAS_ETHERNET (1ULL << 48)

/* Mapped by user space. */
struct divert {
	/* Written by user space. */
	u64 mark_value;
	u64 mark_mask;
	u64 standing_by;  /* packets that leave are another process's, but until `until_ns` */
	u64 until_ns;     /* packets are diverted until then, by CLOCK_MONOTONIC: a process that hangs holds none */
	u64 drop;         /* afterwards they are dropped, not passed */
	u64 device;       /* the index of the TUN device */
	u64 interface;    /* the index of the interface by which packets arrive; 0: none */
	u64 address;      /* of that interface, the first byte lowest; and HAS_ETHERNET */
	/* Counted by these programs: packets on the wire, and bytes of IP. */
	u64 diverted;
	u64 diverted_bytes;
	u64 passed;
	u64 dropped;
	u64 arrived;
	u64 arrived_bytes;
	u64 homeless;     /* packets that could not arrive, as there was no interface */
};

struct ethernet {
	u8 destination[6];
	u8 source[6];
	__be16 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct divert);
} diverts SEC(".maps");

static inline struct divert *find_divert(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&diverts, &key);
}

/* User space may change it at any time. */
static inline u64 read_once(const u64 *word)
{
	return *(const volatile u64 *)word;
}

/* The length of the headers that each segment has; 0 if it cannot be read. */
static inline u32 headers_of(struct __sk_buff *skb, u32 link, u32 transport)
{
	bool v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	u8 protocol, offset;

	if (bpf_skb_load_bytes(skb, link + (v6 ? 6 : 9), &protocol, sizeof(protocol)))
		return 0;
	if (protocol == IPPROTO_UDP)
		return transport + UDP_HEADER;
	if (protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, transport + 12, &offset, sizeof(offset)))
		return 0;
	return transport + (offset >> 4) * 4;
}

/* The packets on the wire. A virtual machine's packet comes without their number. */
static inline u32 segments_of(struct __sk_buff *skb, u32 link, u32 transport)
{
	u32 size = skb->gso_size, headers;

	if (skb->gso_segs || !size)
		return skb->gso_segs ? skb->gso_segs : 1;
	headers = headers_of(skb, link, transport);
	if (!headers || skb->len <= headers)
		return 1;
	return (skb->len - headers + size - 1) / size;
}

static inline int divert(struct __sk_buff *skb, struct divert *d, u32 segments, u32 bytes)
{
	__sync_fetch_and_add(&d->diverted, segments);
	__sync_fetch_and_add(&d->diverted_bytes, bytes);
	return bpf_redirect(d->device, 0);
}

/* A packet that has not come by way of a VLAN: that one has left by another interface, the VLAN's. */
static inline bool is_ip(const struct __sk_buff *skb)
{
	return !skb->vlan_present &&
	       (skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6));
}

SEC("tc")
int divert_egress(struct __sk_buff *skb)
{
	struct divert *d = find_divert();
	const struct sk_buff *kernel = kernel_packet(skb);
	u32 to_data, link, segments;
	bool is_read;

	if (!d || (skb->mark & d->mark_mask) != d->mark_value || !is_ip(skb))
		return TCX_NEXT;
	is_read = bpf_ktime_get_ns() < read_once(&d->until_ns);
	if (!is_read && read_once(&d->standing_by))
		return TCX_NEXT;
	/* From `head` to the packet's first byte. */
	to_data = BPF_CORE_READ(kernel, data) - BPF_CORE_READ(kernel, head);
	link = BPF_CORE_READ(kernel, network_header) - to_data;
	segments = segments_of(skb, link, BPF_CORE_READ(kernel, transport_header) - to_data);
	if (!is_read && read_once(&d->drop)) {
		__sync_fetch_and_add(&d->dropped, segments);
		return TC_ACT_SHOT;
	}
	skb->mark &= ~(u32)d->mark_mask;
	if (is_read)
		return divert(skb, d, segments, skb->wire_len - segments * link);
	__sync_fetch_and_add(&d->passed, segments);
	return TCX_NEXT;
}

/* The destination is the interface's own address: packets to any other are not this host's. */
static inline long put_ethernet(struct __sk_buff *skb, u64 address)
{
	struct ethernet header = { .protocol = skb->protocol };
	long error = bpf_skb_change_head(skb, sizeof(header), 0);

	if (error)
		return error;
	__builtin_memcpy(header.destination, &address, sizeof(header.destination));
	return bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0);
}

/*
 * Without the interface packets are dropped: rules that name it, of a firewall and the reverse path filter,
 * would not see what arrived by the device.
 */
SEC("tc")
int divert_arrival(struct __sk_buff *skb)
{
	struct divert *d = find_divert();
	u32 interface, bytes = skb->len;
	u64 address;

	if (!d)
		return TCX_NEXT;
	interface = read_once(&d->interface);
	address = read_once(&d->address);
	/* Another process may know the interface already, or still. */
	if (!interface && read_once(&d->standing_by))
		return TCX_NEXT;
	/* It is diverted again only if a rule marks it on its further way. */
	skb->mark &= ~(u32)d->mark_mask;
	if (!interface || (address & HAS_ETHERNET && put_ethernet(skb, address))) {
		__sync_fetch_and_add(&d->homeless, 1);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&d->arrived, 1);
	__sync_fetch_and_add(&d->arrived_bytes, bytes);
	return bpf_redirect(interface, BPF_F_INGRESS);
}
