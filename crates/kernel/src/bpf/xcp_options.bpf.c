/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * XCP's TCP options: offered and accepted with the SYN, written into segments and read from them. The kernel
 * calls the program a few times for each connection of the cgroup that it is attached to, and of those below.
 * Only for sockets with the congestion control that was loaded with it, it asks to be called for each
 * segment.
 */
#include "xcp.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/*
 * The congestion control whose sockets use XCP; its name is known when it is registered, after this program
 * was loaded.
 */
char congestion[TCP_CA_NAME_MAX] = "bp_xcp";

/*
 * So many SYNs and SYN-ACKs carry the option. A middlebox may drop them because of it, so that later ones
 * must do without; but over a satellite it is more likely that the first was lost.
 */
#define OFFERS 2
/*
 * The feedback of so many segments waits for a segment with room to spare; then it replaces something else.
 */
#define OVERDUE 4

struct offer {
	u8 kind, length, experiment[2];
};

struct total {
	u8 kind, length, experiment[2];
	u32 total;
};

struct request {
	u8 kind, length, experiment[2];
	u32 rtt_us, spacing_ns, feedback;
};

_Static_assert(sizeof(struct offer) == XCP_OFFER && sizeof(struct total) == XCP_TOTAL &&
		       sizeof(struct request) == XCP_REQUEST,
	       "options are as long as they say");

#define HEAD(size)                                  \
	.kind = XCP_KIND, .length = (size),         \
	.experiment = { XCP_EXPERIMENT_HIGH, XCP_EXPERIMENT_LOW }

static bool is_ours(const char *name)
{
	for (int i = 0; i < TCP_CA_NAME_MAX; i++) {
		if (name[i] != congestion[i])
			return false;
		if (!name[i])
			break;
	}
	return true;
}

static bool has_chosen_xcp(struct bpf_sock_ops *skops)
{
	char name[TCP_CA_NAME_MAX] = {};

	return !bpf_getsockopt(skops, SOL_TCP, TCP_CONGESTION, name, sizeof(name)) && is_ours(name);
}

/* The same for the listener whose SYN-ACK is being made. */
static bool listener_has_chosen_xcp(struct request_sock *request)
{
	struct inet_connection_sock *listener = (void *)BPF_CORE_READ(request, __req_common.skc_listener);
	char name[TCP_CA_NAME_MAX] = {};

	BPF_CORE_READ_STR_INTO(&name, listener, icsk_ca_ops, name);
	return is_ours(name);
}

static struct xcp_endpoint *endpoint(struct bpf_sock_ops *skops, u64 flags)
{
	/* The verifier must see that the checked pointer is the one that is used. */
	struct bpf_sock *sk = skops->sk;

	return sk ? bpf_sk_storage_get(&xcp_endpoints, sk, 0, flags) : 0;
}

static void call_us_for(struct bpf_sock_ops *skops, int events)
{
	bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags | events);
}

/* Loads the option; returns its length, or zero where there is none. */
static int load(struct bpf_sock_ops *skops, struct request *option, u64 flags)
{
	/* With a length of four the search compares the experiment's number, too. */
	*option = (struct request){ HEAD(4) };
	int length = bpf_load_hdr_opt(skops, option, sizeof(*option), flags);
	return length > 0 ? length : 0;
}

/* The number of segments that were merged into this one; all of them have the same option. */
static u32 wire_segments(struct bpf_sock_ops *skops)
{
	const struct sk_buff *skb = BPF_CORE_READ(kernel_sock_ops(skops), skb);
	struct skb_shared_info *shared = (void *)(BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));
	u32 segments = BPF_CORE_READ(shared, gso_segs);

	return segments ? segments : 1;
}

static void hear(struct bpf_sock_ops *skops, struct xcp_endpoint *x, const struct request *option, int length)
{
	if (length == XCP_REQUEST) {
		u32 segments = wire_segments(skops);
		x->total += bpf_ntohl(option->feedback) * segments;
		x->unreported += segments;
		x->receives = 1;
	} else if (length == XCP_TOTAL) {
		x->heard_total = bpf_ntohl(((const struct total *)option)->total);
		x->heard++;
	}
}

/*
 * Now both ends know whether the other one uses XCP: the active one by the SYN-ACK; the passive one by the
 * first segment after it, or by the SYN if that opened a socket at once (RFC 7413).
 */
static void on_established(struct bpf_sock_ops *skops, bool active)
{
	struct request option;

	if (!has_chosen_xcp(skops))
		return;
	int length = load(skops, &option, 0);
	struct xcp_endpoint *x = endpoint(skops, active ? 0 : BPF_SK_STORAGE_GET_F_CREATE);
	if (x && (active ? x->offers && length == XCP_OFFER : length > 0)) {
		x->peer_takes = x->asks = 1;
		hear(skops, x, &option, length);
		call_us_for(skops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG);
	} else {
		bpf_sock_ops_cb_flags_set(skops, skops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	}
}

/* Whether the SYN-ACK that is being made accepts an offer. */
static bool takes_offer(struct bpf_sock_ops *skops)
{
	struct request_sock *request = (void *)BPF_CORE_READ(kernel_sock_ops(skops), sk);
	struct request option;

	/* Nothing is remembered of a connection behind a SYN cookie. */
	return skops->args[0] != BPF_WRITE_HDR_TCP_SYNACK_COOKIE &&
	       load(skops, &option, BPF_LOAD_HDR_OPT_TCP_SYN) == XCP_OFFER &&
	       BPF_CORE_READ(request, num_retrans) < OFFERS - 1 && listener_has_chosen_xcp(request);
}

/*
 * The option for a segment. Segments with data have the full size, from which CURRENT_MSS has reserved room
 * for the longest option: no more may be written into them.
 */
static int option_for(const struct xcp_endpoint *x, bool has_data)
{
	if (!has_data)
		return XCP_TOTAL;
	if (!x->asks)
		return x->receives ? XCP_TOTAL : 0;
	/* Where data go both ways, acknowledgements without data are rare. */
	return x->unreported >= OVERDUE ? XCP_TOTAL : XCP_REQUEST;
}

static void reserve(struct bpf_sock_ops *skops)
{
	u8 flags = skops->skb_tcp_flags;

	if (skops->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS) {
		struct xcp_endpoint *x = endpoint(skops, 0);
		if (x && x->peer_takes && (x->asks || x->receives) &&
		    (!x->asks || bpf_reserve_hdr_opt(skops, XCP_REQUEST, 0)))
			bpf_reserve_hdr_opt(skops, XCP_TOTAL, 0);
		return;
	}
	if (flags & TCPHDR_SYN && flags & TCPHDR_ACK) {
		if (takes_offer(skops))
			bpf_reserve_hdr_opt(skops, XCP_OFFER, 0);
		return;
	}
	struct xcp_endpoint *x = endpoint(skops, 0);
	if (!x)
		return;
	if (flags & TCPHDR_SYN) {
		if (x->offers < OFFERS)
			bpf_reserve_hdr_opt(skops, XCP_OFFER, 0);
	} else if (x->peer_takes) {
		int length = option_for(x, skops->skb_len > 0);
		/* SACK blocks take the room first; the shorter option may still fit. */
		if (length && bpf_reserve_hdr_opt(skops, length, 0) && length > XCP_TOTAL)
			bpf_reserve_hdr_opt(skops, XCP_TOTAL, 0);
	}
}

static void write_offer(struct bpf_sock_ops *skops)
{
	struct offer option = { HEAD(sizeof(option)) };

	bpf_store_hdr_opt(skops, &option, sizeof(option), 0);
}

static int write_request(struct bpf_sock_ops *skops, struct xcp_endpoint *x, u32 payload)
{
	struct request option = {
		HEAD(sizeof(option)),
		.rtt_us = bpf_htonl(x->rtt_us),
		.spacing_ns = bpf_htonl(x->spacing_ns),
		.feedback = bpf_htonl(x->request),
	};
	int refused = bpf_store_hdr_opt(skops, &option, sizeof(option), 0);

	if (!refused && x->request > 0) {
		/* The kernel's value does not include this option. */
		u32 mss = skops->mss_cache > XCP_REQUEST ? skops->mss_cache - XCP_REQUEST : 1;
		u32 segments = (payload + mss - 1) / mss;
		x->asked += (u64)x->request * segments;
	}
	return refused;
}

static void write_total(struct bpf_sock_ops *skops, struct xcp_endpoint *x)
{
	struct total option = { HEAD(sizeof(option)), .total = bpf_htonl(x->total) };

	if (!bpf_store_hdr_opt(skops, &option, sizeof(option), 0))
		x->unreported = 0;
}

/* Bytes behind the header that is being written. */
static u32 payload_length(struct bpf_sock_ops *skops)
{
	u8 *header = skops->skb_data;
	void *end = skops->skb_data_end;

	if ((void *)(header + 20) > end)
		return 0;
	u32 length = (header[12] >> 4) * 4;
	return skops->skb_len > length ? skops->skb_len - length : 0;
}

static void write(struct bpf_sock_ops *skops)
{
	u8 flags = skops->skb_tcp_flags;

	if (flags & TCPHDR_SYN && flags & TCPHDR_ACK) {
		if (takes_offer(skops))
			write_offer(skops);
		return;
	}
	struct xcp_endpoint *x = endpoint(skops, 0);
	if (!x)
		return;
	if (flags & TCPHDR_SYN) {
		if (x->offers < OFFERS) {
			write_offer(skops);
			x->offers++;
		}
	} else if (x->peer_takes) {
		u32 payload = payload_length(skops);
		if (option_for(x, payload > 0) != XCP_REQUEST || write_request(skops, x, payload))
			write_total(skops, x);
	}
}

SEC("sockops")
int xcp_options(struct bpf_sock_ops *skops)
{
	struct request option;

	switch (skops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		if (has_chosen_xcp(skops) && endpoint(skops, BPF_SK_STORAGE_GET_F_CREATE))
			call_us_for(skops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		if (has_chosen_xcp(skops)) {
			/* A repeated SYN-ACK reads it again. */
			int save_syn = 1;
			bpf_setsockopt(skops, SOL_TCP, TCP_SAVE_SYN, &save_syn, sizeof(save_syn));
			call_us_for(skops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		}
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		on_established(skops, true);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_established(skops, false);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve(skops);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write(skops);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB: {
		struct xcp_endpoint *x = endpoint(skops, 0);
		if (x && x->peer_takes)
			hear(skops, x, &option, load(skops, &option, 0));
		break;
	}
	}
	return 1;
}

/* The longest header of TCP, and its parts. */
#define HEADER_MAX 60
#define CHECKSUM 16
/* NOP, NOP, and the head of a SACK option: with three blocks beside timestamps, with four without. */
#define THREE_BLOCKS bpf_htonl(0x0101051a)
#define FOUR_BLOCKS bpf_htonl(0x01010522)

/* The offset of the SACK option in a header that SACK blocks fill; zero for other headers. */
static u32 full_of_sack(const u8 *header)
{
	u32 length = header[12] >> 4;

	if (length == 15 && *(const u32 *)(header + 32) == THREE_BLOCKS)
		return 32;
	if (length == 14 && *(const u32 *)(header + 20) == FOUR_BLOCKS)
		return 20;
	return 0;
}

/*
 * The kernel writes SACK blocks before the other program can write its option. With a loss in every hundred
 * segments over GEO, three blocks fill most acknowledgements. Earlier acknowledgements had the last block
 * already (RFC 2018 §4): now and then it makes room for the sum.
 */
SEC("tc")
int xcp_full_acks(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return TCX_NEXT;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return TCX_NEXT;
	struct xcp_endpoint *x = bpf_sk_storage_get(&xcp_endpoints, sk, 0, 0);
	if (!x || x->unreported < OVERDUE || skb->gso_segs > 1)
		return TCX_NEXT;

	const struct sk_buff *packet = kernel_packet(skb);
	u64 headroom = (u64)BPF_CORE_READ(packet, data) - (u64)BPF_CORE_READ(packet, head);
	u32 at = BPF_CORE_READ(packet, transport_header) - headroom;
	u8 header[HEADER_MAX] __attribute__((aligned(8))) = {};
	u32 length = skb->len - at;
	if (length != HEADER_MAX && length != HEADER_MAX - 4)
		return TCX_NEXT;
	if (bpf_skb_load_bytes(skb, at, header, HEADER_MAX - 4))
		return TCX_NEXT;
	u32 sack = full_of_sack(header);
	if (!sack || length != (header[12] >> 4) * 4U)
		return TCX_NEXT;

	u32 last_block = length - XCP_TOTAL;
	struct {
		u32 head;
		u8 last[XCP_TOTAL];
	} before = {}, after = {};
	before.head = after.head = sack == 32 ? THREE_BLOCKS : FOUR_BLOCKS;
	((u8 *)&after.head)[3] -= 8;
	if (bpf_skb_load_bytes(skb, at + last_block, before.last, sizeof(before.last)))
		return TCX_NEXT;
	struct total option = { HEAD(sizeof(option)), .total = bpf_htonl(x->total) };
	__builtin_memcpy(after.last, &option, sizeof(option));
	long long difference = bpf_csum_diff((__be32 *)&before, sizeof(before), (__be32 *)&after, sizeof(after), 0);
	if (difference < 0)
		return TCX_NEXT;
	if (bpf_skb_store_bytes(skb, at + sack, &after.head, sizeof(after.head), 0) ||
	    bpf_skb_store_bytes(skb, at + last_block, after.last, sizeof(after.last), 0))
		return TCX_NEXT;
	bpf_l4_csum_replace(skb, at + CHECKSUM, 0, difference, 0);
	x->unreported = 0;
	return TCX_NEXT;
}
