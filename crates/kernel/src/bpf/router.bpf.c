/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * What an XCP router does for each packet, at the egress of an interface.
 *
 * Katabi, Handley and Rohrs, "Congestion Control for High Bandwidth-Delay Product Networks" (SIGCOMM 2002),
 * §3.5. This program keeps the sums and distributes the feedback. User space decides in each control interval
 * how much there is, in floating point, with the code of virtual time.
 *
 * A GSO super-packet has one option, which is copied into each of its segments: the feedback for all of them
 * is divided by their number. Bytes are those of IP packets, with the headers of each.
 *
 * Packets that cannot be parsed pass unchanged.
 */
#include "kernel.h"
#include "xcp_option.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* IPPROTO_TCP; the EtherTypes in network order, as skb->protocol has them. */
#define TCP 6
#define ETHERTYPE_IP bpf_htons(0x0800)
#define ETHERTYPE_IPV6 bpf_htons(0x86dd)

#define OPTION_END 0
#define OPTION_NOP 1
/* Of the feedback in a request. */
#define FEEDBACK_OFFSET 12
#define TCP_HEADER 20
#define TCP_OPTIONS 40

/* Fixed point: bytes per second have 8 fractional bits, factors 24 more, nanoseconds for a byte 16. */
#define FEEDBACK_SHIFT 8
#define FACTOR_SHIFT 24
#define TRANSMIT_SHIFT 16
/*
 * Sums of microseconds times nanoseconds lose 10 bits, so that they wrap round no sooner than they are read.
 */
#define RTT_SPACING_SHIFT 10
/* ns; a shorter queue is a burst */
#define SHORTEST_WATCH 2000000

/* A product by `factor` fits into 64 bits up to `limit`; beyond, it is more than any pool has. */
struct ratio {
	u64 factor;
	u64 limit;
};

/* The feedback to distribute. */
struct shares {
	u64 positive;           /* r+ */
	u64 negative;           /* r- */
	struct ratio per_ns;    /* Cp */
	struct ratio per_byte;  /* Cn */
};

/* Mapped by user space. */
struct router {
	/*
	 * Written by user space: the slot that is not in use, then the generation, whose last bit selects the slot.
	 */
	u64 generation;
	struct shares slots[2];
	u64 transmit_time;   /* of a byte, ns */
	u64 mean_rtt;        /* ns */
	u64 longest_rtt;     /* us; no queue counts as longer either */
	u64 only_to_askers;  /* P-XCP */
	/* Counted by this program. Sums only grow, and wrap. */
	u64 packets;
	u64 with_header;
	u64 lowered;
	u64 malformed;
	u64 bytes;
	u64 spacing;         /* ns */
	u64 rtt_spacing;     /* us * ns >> RTT_SPACING_SHIFT */
	u64 asking_spacing;  /* ns */
	/* The queue, as a transmitter of the given capacity would have it. */
	u64 busy_until;      /* ns, monotonic clock */
	u64 watch_end;       /* ns, monotonic clock */
	u64 watch_shortest;  /* the shortest queue of this watch so far, ns */
	u64 standing;        /* the shortest queue of the last complete watch, ns */
	/* What is left of the shares of this generation. */
	u64 adopted;
	u64 positive;
	u64 negative;
};

struct guard {
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct router);
} routers SEC(".maps");

/* Separate, because a map with a lock cannot be mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct guard);
} guards SEC(".maps");

enum { ABSENT = 0, PRESENT, MALFORMED };

struct packet {
	u32 network;    /* offsets from the packet's first byte */
	u32 transport;
	u32 segments;   /* packets on the wire */
	u32 bytes;      /* of them together */
	u32 length;     /* of the options */
	u32 at;         /* offset of the current option from the first */
	u32 rtt;        /* us */
	u32 spacing;    /* ns */
	__s32 asked;      /* bytes per second */
	u8 kind;        /* ABSENT, PRESENT, MALFORMED */
	u8 options[64] __attribute__((aligned(8)));
};

static inline u32 big_endian(const u8 *options, u32 at)
{
	return (u32)options[at & 63] << 24 | (u32)options[(at + 1) & 63] << 16 |
	       (u32)options[(at + 2) & 63] << 8 | options[(at + 3) & 63];
}

static inline u8 classify(const u8 *options, u32 at, u32 length)
{
	if (options[(at + 2) & 63] != XCP_EXPERIMENT_HIGH || options[(at + 3) & 63] != XCP_EXPERIMENT_LOW)
		return ABSENT;
	if (length == XCP_REQUEST)
		return PRESENT;
	return length == XCP_OFFER || length == XCP_TOTAL ? ABSENT : MALFORMED;
}

/* Examines one option; returns 1 after the last. The verifier checks this once, but would unroll a loop. */
static long look_at_option(u32 index, void *context)
{
	struct packet *p = context;
	u8 kind = p->options[p->at & 63];
	u32 size = p->options[(p->at + 1) & 63];

	if (p->at >= p->length || kind == OPTION_END)
		return 1;
	if (kind == OPTION_NOP) {
		p->at++;
		return 0;
	}
	if (size < 2 || p->at + size > p->length)
		p->kind = MALFORMED;
	else if (kind == XCP_KIND && size >= XCP_OFFER)
		p->kind = classify(p->options, p->at, size);
	if (p->kind != ABSENT)
		return 1;
	p->at += size;
	return 0;
}

/* The offset of the TCP header; 0 for other protocols, fragments, and IPv6 extension headers. */
static inline u32 find_transport(struct __sk_buff *skb, u32 network)
{
	u8 ip[20];

	if (bpf_skb_load_bytes(skb, network, ip, sizeof(ip)))
		return 0;
	if (skb->protocol == ETHERTYPE_IPV6)
		return ip[6] == TCP ? network + 40 : 0;
	if (skb->protocol != ETHERTYPE_IP || ip[9] != TCP || (ip[6] & 0x3f) || ip[7])
		return 0;
	return network + (ip[0] & 15) * 4;
}

/* Reads the congestion header of a segment with data. Returns the length of the TCP header, or 0. */
static inline u32 read_tcp(struct __sk_buff *skb, struct packet *p)
{
	u8 tcp[TCP_HEADER];

	p->transport = find_transport(skb, p->network);
	if (!p->transport || bpf_skb_load_bytes(skb, p->transport, tcp, sizeof(tcp)))
		return 0;
	u32 header = (tcp[12] >> 4) * 4;
	u32 options = header - TCP_HEADER;

	if (header < TCP_HEADER || p->transport + header > skb->len)
		return 0;
	if (options < XCP_REQUEST || p->transport + header == skb->len)
		return header;
	/* The verifier has forgotten the bounds. */
	barrier_var(options);
	if (options < 1 || options > TCP_OPTIONS)
		return header;
	if (bpf_skb_load_bytes(skb, p->transport + TCP_HEADER, p->options, options))
		return header;
	p->length = options;
	bpf_loop(options, look_at_option, p, 0);
	if (p->kind == PRESENT) {
		p->rtt = big_endian(p->options, p->at + 4);
		p->spacing = big_endian(p->options, p->at + 8);
		p->asked = big_endian(p->options, p->at + FEEDBACK_OFFSET);
	}
	return header;
}

/*
 * The number of packets on the wire, and their length. The kernel's count includes the copies of the headers.
 */
static inline void measure(struct __sk_buff *skb, struct packet *p, u32 tcp_header)
{
	u32 link = p->network, size = skb->gso_size;

	p->segments = skb->gso_segs;
	if (!p->segments && size && tcp_header)
		p->segments = (skb->len - p->transport - tcp_header + size - 1) / size;
	if (!p->segments)
		p->segments = 1;
	p->bytes = skb->wire_len - p->segments * link;
	/* Only tests leave it unset. */
	if (skb->wire_len < p->segments * link)
		p->bytes = skb->len - link;
}

static inline u64 share_of(const struct ratio *ratio, u64 amount, u64 pool)
{
	return amount > ratio->limit ? pool : min_u64(pool, (amount * ratio->factor) >> FACTOR_SHIFT);
}

/* The feedback for all segments together, in fixed point, which is taken from the pools. */
static inline __s64 give(struct router *r, const struct shares *s, const struct packet *p, u64 spacing)
{
	__s64 asked = (__s64)p->asked * p->segments * (1 << FEEDBACK_SHIFT);
	bool may_grow = !r->only_to_askers || asked > 0;
	__s64 positive = may_grow ? share_of(&s->per_ns, spacing, r->positive) : 0;
	__s64 negative = share_of(&s->per_byte, p->bytes, r->negative);
	__s64 feedback = positive - negative;

	/* An upstream router, or the sender itself, allows less: the rest is for others. */
	if (asked < feedback) {
		negative = min_u64(r->negative, negative + (feedback - asked));
		positive = asked + negative;
		if (positive < 0)
			positive = 0;
		feedback = asked;
	}
	r->positive -= min_u64(r->positive, positive);
	r->negative -= negative;
	return feedback;
}

/* The feedback for each segment. eBPF has no signed division. */
static inline __s32 per_segment(__s64 feedback, u32 segments)
{
	u64 size = feedback < 0 ? -feedback : feedback;

	size = segments == 1 ? size >> FEEDBACK_SHIFT : size / ((u64)segments << FEEDBACK_SHIFT);
	size = min_u64(size, 0x7fffffff);
	return feedback < 0 ? -(__s32)size : (__s32)size;
}

/*
 * A burst drains within a round trip, a standing queue does not: the minimum over half a round trip counts.
 */
static inline void queue(struct router *r, u64 now, u32 bytes)
{
	u64 length = r->busy_until > now ? min_u64(r->busy_until - now, r->longest_rtt * 1000) : 0;

	r->watch_shortest = min_u64(r->watch_shortest, length);
	if (now >= r->watch_end) {
		u64 watch = r->mean_rtt > length ? (r->mean_rtt - length) / 2 : 0;

		r->standing = r->watch_shortest;
		r->watch_shortest = length;
		r->watch_end = now + (watch > SHORTEST_WATCH ? watch : SHORTEST_WATCH);
	}
	r->busy_until = now + length + ((bytes * r->transmit_time) >> TRANSMIT_SHIFT);
}

static inline const struct shares *adopt(struct router *r)
{
	u64 generation = *(volatile u64 *)&r->generation;
	const struct shares *shares = &r->slots[generation & 1];

	if (generation != r->adopted) {
		r->adopted = generation;
		r->positive = shares->positive;
		r->negative = shares->negative;
	}
	return shares;
}

/* Counts a packet with a congestion header and returns its new feedback. */
static inline __s32 serve(struct router *r, const struct shares *shares, const struct packet *p)
{
	u64 rtt = min_u64(p->rtt, r->longest_rtt);
	/* A sender sends at least one packet in each round trip. */
	u64 spacing = min_u64(p->spacing, rtt * 1000) * p->segments;

	r->with_header += p->segments;
	r->spacing += spacing;
	r->rtt_spacing += (spacing * rtt) >> RTT_SPACING_SHIFT;
	if (!r->only_to_askers || p->asked > 0)
		r->asking_spacing += spacing;
	return per_segment(give(r, shares, p, spacing), p->segments);
}

static inline __s32 account(struct router *r, const struct packet *p, u64 now)
{
	const struct shares *shares = adopt(r);
	__s32 feedback = p->asked;

	r->packets += p->segments;
	r->bytes += p->bytes;
	queue(r, now, p->bytes);
	if (p->kind == MALFORMED)
		r->malformed += p->segments;
	if (p->kind == PRESENT)
		feedback = serve(r, shares, p);
	if (feedback < p->asked)
		r->lowered += p->segments;
	return feedback;
}

/* Writes the feedback. The checksum's words begin at even offsets, the feedback anywhere. */
static inline void rewrite(struct __sk_buff *skb, struct packet *p, __s32 feedback)
{
	u32 at = p->at + FEEDBACK_OFFSET;
	u32 even = at & ~1u;
	u32 shift = 32 - 8 * (at & 1);
	u64 before = (u64)big_endian(p->options, even) << 32 | big_endian(p->options, even + 4);
	u64 after = (before & ~(0xffffffffULL << shift)) | (u64)(u32)feedback << shift;
	u32 wire = bpf_htonl(feedback);

	before = bpf_cpu_to_be64(before);
	after = bpf_cpu_to_be64(after);
	__s64 difference = bpf_csum_diff((__be32 *)&before, sizeof(before), (__be32 *)&after, sizeof(after), 0);

	/*
	 * With checksum offload the field holds only the sum of the pseudo-header, which this does not change.
	 */
	bpf_skb_store_bytes(skb, p->transport + TCP_HEADER + at, &wire, sizeof(wire), 0);
	bpf_l4_csum_replace(skb, p->transport + 16, 0, difference, 0);
}

SEC("tc")
int xcp_router(struct __sk_buff *skb)
{
	u32 key = 0;
	struct router *r = bpf_map_lookup_elem(&routers, &key);
	struct guard *guard = bpf_map_lookup_elem(&guards, &key);
	const struct sk_buff *kernel = kernel_packet(skb);
	struct packet p = {};

	if (!r || !guard)
		return TCX_NEXT;
	p.network = BPF_CORE_READ(kernel, head) + BPF_CORE_READ(kernel, network_header) - BPF_CORE_READ(kernel, data);
	measure(skb, &p, read_tcp(skb, &p));
	u64 now = bpf_ktime_get_ns();

	bpf_spin_lock(&guard->lock);
	__s32 feedback = account(r, &p, now);

	bpf_spin_unlock(&guard->lock);
	if (feedback < p.asked)
		rewrite(skb, &p, feedback);
	return TCX_NEXT;
}
