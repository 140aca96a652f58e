-- Wireshark shows what bentpipe puts on the wire: the TCP option of XCP (docs/xcp.md), and the frames between
-- protected legs over UDP (docs/protect.md). docs/wireshark.md says how to install and use it.
--
-- It reads nothing beyond the end of what is there: what a frame lacks becomes an expert note "malformed".

-- XCP: an experimental option (RFC 6994) of kind 254.

local OPTION_KIND = 254
local EXPERIMENT = 0x4250
local NANOSECONDS_PER_SECOND = 1000000000

local xcp = Proto("bentpipe_xcp", "bentpipe XCP")
local xcp_types = { [4] = "offer", [16] = "request", [8] = "total" }
local xcp_fields = {
    kind = ProtoField.uint8("bentpipe.xcp.kind", "Kind", base.DEC),
    length = ProtoField.uint8("bentpipe.xcp.length", "Length", base.DEC),
    experiment = ProtoField.uint16("bentpipe.xcp.experiment", "Experiment identifier", base.HEX),
    type = ProtoField.string("bentpipe.xcp.type", "Type"),
    rtt = ProtoField.uint32("bentpipe.xcp.rtt", "Round-trip time (us)", base.DEC),
    spacing = ProtoField.uint32("bentpipe.xcp.spacing", "Spacing of segments (ns)", base.DEC),
    rate = ProtoField.double("bentpipe.xcp.segments_per_second", "Segments per second"),
    feedback = ProtoField.int32("bentpipe.xcp.feedback", "Feedback (byte/s)", base.DEC),
    total = ProtoField.uint32("bentpipe.xcp.total", "Sum of all feedback, modulo 2^32 (byte/s)", base.DEC),
}
xcp.fields = xcp_fields
local xcp_malformed = ProtoExpert.new(
    "bentpipe.xcp.malformed", "malformed option of XCP", expert.group.MALFORMED, expert.severity.WARN)
xcp.experts = { xcp_malformed }

local tcp_options = DissectorTable.get("tcp.option")
-- Other experiments share the kind.
local other_experiments = tcp_options:get_dissector(OPTION_KIND)

function xcp.dissector(tvb, pinfo, tree)
    if tvb:len() < 4 or tvb(2, 2):uint() ~= EXPERIMENT then
        if other_experiments then
            pcall(other_experiments.call, other_experiments, tvb, pinfo, tree)
        end
        return tvb:len()
    end
    local length = tvb(1, 1):uint()
    local type = xcp_types[length]
    local option = tree:add(xcp, tvb(), "TCP Option - XCP " .. (type or "malformed"))
    option:add(xcp_fields.kind, tvb(0, 1))
    option:add(xcp_fields.length, tvb(1, 1))
    option:add(xcp_fields.experiment, tvb(2, 2))
    if not type or tvb:len() < length then
        option:add_proto_expert_info(xcp_malformed)
        return tvb:len()
    end
    option:add(xcp_fields.type, tvb(1, 1), type)
    if type == "request" then
        option:add(xcp_fields.rtt, tvb(4, 4))
        option:add(xcp_fields.spacing, tvb(8, 4))
        local spacing = tvb(8, 4):uint()
        if spacing > 0 then
            option:add(xcp_fields.rate, tvb(8, 4), NANOSECONDS_PER_SECOND / spacing):set_generated()
        end
        option:add(xcp_fields.feedback, tvb(12, 4))
    elseif type == "total" then
        option:add(xcp_fields.total, tvb(4, 4))
    end
    return tvb:len()
end

tcp_options:add(OPTION_KIND, xcp)

-- Protected legs: one frame in each datagram of UDP.

local PORT = 25200
local VERSION = 1
local TAG = 16
local HELLO_HEADER = 26
local HEADER = 5
-- Frames of an epoch, which share a key.
local EPOCH = 0x1000000
local MAX_REQUESTS = 48
local NO_ECHO = 0xffffffff

local HELLO, SOURCE_LATENCY, SOURCE_BULK, REPAIR_LATENCY, REPAIR_BULK, REPORT, CONTEXTS = 0, 1, 2, 3, 4, 5, 6
local kinds = {
    [HELLO] = "hello",
    [SOURCE_LATENCY] = "source (latency)",
    [SOURCE_BULK] = "source (bulk)",
    [REPAIR_LATENCY] = "repair (latency)",
    [REPAIR_BULK] = "repair (bulk)",
    [REPORT] = "report",
    [CONTEXTS] = "contexts",
}
local classes = {
    [SOURCE_LATENCY] = "latency", [REPAIR_LATENCY] = "latency",
    [SOURCE_BULK] = "bulk", [REPAIR_BULK] = "bulk",
}
local INSECURE = 255
local ciphers = { [1] = "AES-128-GCM", [2] = "ChaCha20-Poly1305", [INSECURE] = "none: not encrypted" }

local protect = Proto("bentpipe_protect", "bentpipe protected leg")
local fields = {
    version = ProtoField.uint8("bentpipe.protect.version", "Version", base.DEC, nil, 0xf0),
    kind = ProtoField.uint8("bentpipe.protect.kind", "Kind", base.DEC, kinds, 0x0f),
    class = ProtoField.string("bentpipe.protect.class", "Class"),
    cipher = ProtoField.uint8("bentpipe.protect.cipher", "Cipher", base.DEC, ciphers),
    nonce = ProtoField.bytes("bentpipe.protect.nonce", "Nonce of the sender"),
    hello_number = ProtoField.uint64("bentpipe.protect.hello.number", "Number of the hello", base.DEC),
    hello_asks = ProtoField.bool("bentpipe.protect.hello.asks", "Asks for an answer", 8, nil, 0x01),
    hello_echo = ProtoField.bytes("bentpipe.protect.hello.echo", "Nonce last heard from the peer"),
    key_id = ProtoField.uint8("bentpipe.protect.key_id", "Key id", base.HEX),
    number = ProtoField.uint24("bentpipe.protect.number", "Number, lower 24 bits", base.DEC),
    epoch = ProtoField.uint32("bentpipe.protect.epoch", "Epoch, counted in this capture", base.DEC),
    sealed = ProtoField.bytes("bentpipe.protect.sealed", "Encrypted"),
    tag = ProtoField.bytes("bentpipe.protect.tag", "Tag"),
    esi = ProtoField.uint24("bentpipe.protect.esi", "ESI, lower 24 bits", base.DEC),
    cid = ProtoField.uint8("bentpipe.protect.cid", "CID", base.DEC),
    ecn = ProtoField.uint8("bentpipe.protect.ecn", "ECN", base.DEC, nil, 0x60),
    compressed = ProtoField.bytes(
        "bentpipe.protect.compressed", "Packet without the header of its context"),
    other = ProtoField.bytes("bentpipe.protect.other", "What is no IP packet"),
    repair_key = ProtoField.uint16("bentpipe.protect.repair.key", "Repair key", base.HEX),
    window_first = ProtoField.uint24("bentpipe.protect.window.first", "First ESI, lower 24 bits", base.DEC),
    window_further = ProtoField.uint16(
        "bentpipe.protect.window.further", "Further ranges", base.DEC, nil, 0xf000),
    window_length = ProtoField.uint16(
        "bentpipe.protect.window.length", "Length of the first range", base.DEC, nil, 0x0fff),
    range_gap = ProtoField.uint16("bentpipe.protect.range.gap", "Gap (packets)", base.DEC),
    range_length = ProtoField.uint16("bentpipe.protect.range.length", "Length (packets)", base.DEC),
    symbol = ProtoField.bytes("bentpipe.protect.symbol", "Symbol"),
    sent_at = ProtoField.uint32("bentpipe.protect.report.sent_at", "Sent at (us)", base.DEC),
    echo = ProtoField.uint32(
        "bentpipe.protect.report.echo", "Time of the report that is answered (us)", base.DEC),
    held = ProtoField.uint32("bentpipe.protect.report.held", "Time since that came (us)", base.DEC),
    received = ProtoField.uint64("bentpipe.protect.report.received", "Frames received", base.DEC),
    lost = ProtoField.uint64("bentpipe.protect.report.lost", "Frames lost", base.DEC),
    bursts = ProtoField.uint64("bentpipe.protect.report.bursts", "Bursts of losses", base.DEC),
    next_latency = ProtoField.uint32(
        "bentpipe.protect.report.next.latency", "Next ESI of its own, latency", base.DEC),
    next_bulk = ProtoField.uint32(
        "bentpipe.protect.report.next.bulk", "Next ESI of its own, bulk", base.DEC),
    needs_latency = ProtoField.uint32(
        "bentpipe.protect.report.needs_from.latency", "Needs from ESI, latency", base.DEC),
    needs_bulk = ProtoField.uint32(
        "bentpipe.protect.report.needs_from.bulk", "Needs from ESI, bulk", base.DEC),
    requests_first = ProtoField.uint32(
        "bentpipe.protect.report.requests.first", "First ESI requested", base.DEC),
    requests = ProtoField.uint8("bentpipe.protect.report.requests.ranges", "Ranges requested", base.DEC),
    confirmations = ProtoField.uint8(
        "bentpipe.protect.report.confirmations", "Contexts confirmed", base.DEC),
    generation = ProtoField.uint16("bentpipe.protect.generation", "Generation", base.DEC),
    template_length = ProtoField.uint8(
        "bentpipe.protect.template.length", "Length of the template", base.DEC),
    template = ProtoField.bytes("bentpipe.protect.template", "Template"),
}
protect.fields = fields
local malformed = ProtoExpert.new(
    "bentpipe.protect.malformed", "malformed frame", expert.group.MALFORMED, expert.severity.ERROR)
local unknown = ProtoExpert.new(
    "bentpipe.protect.unknown", "another version, or a kind that does not exist", expert.group.UNDECODED,
    expert.severity.WARN)
protect.experts = { malformed, unknown }

protect.prefs.cleartext = Pref.bool(
    "Frames are not encrypted (insecure = true)", false,
    "Without it, frames are read as encrypted unless a hello in the capture says that the leg has no cipher.")

local ip = Dissector.get("ip")
local ipv6 = Dissector.get("ipv6")

-- What the first pass has found: the cipher of each pair of addresses, the highest number of each session, and
-- the epoch of each packet.
local state

function protect.init()
    state = { ciphers = {}, numbers = {}, epochs = {} }
end

-- Addresses of a packet, the same both ways.
local function pair_of(pinfo)
    local a, b = tostring(pinfo.src) .. ":" .. pinfo.src_port, tostring(pinfo.dst) .. ":" .. pinfo.dst_port
    if a < b then return a .. " " .. b else return b .. " " .. a end
end

-- The epoch of a frame: its number is the one next to the highest that came (RFC 9000 appendix A.3).
local function epoch_of(pinfo, key_id, low)
    if not pinfo.visited then
        local session = tostring(pinfo.src) .. ":" .. pinfo.src_port .. " " .. key_id
        local highest = state.numbers[session] or low
        local epoch = math.floor(highest / EPOCH)
        local difference = low - highest % EPOCH
        if difference < -EPOCH / 2 then
            epoch = epoch + 1
        elseif difference >= EPOCH / 2 and epoch > 0 then
            epoch = epoch - 1
        end
        state.numbers[session] = math.max(highest, epoch * EPOCH + low)
        state.epochs[pinfo.number] = epoch
    end
    return state.epochs[pinfo.number] or 0
end

-- Reads fields one after the other; after the first one that is not there, nothing.
local Reader = {}
Reader.__index = Reader

function Reader.new(tvb, at, stop, tree)
    return setmetatable({ tvb = tvb, at = at, stop = stop, tree = tree, failed = false }, Reader)
end

function Reader:remaining()
    return self.stop - self.at
end

function Reader:fail()
    if not self.failed then
        self.tree:add_proto_expert_info(malformed)
    end
    self.failed = true
end

-- The next bytes, or nil.
function Reader:take(length)
    if self.failed or length > self:remaining() then
        self:fail()
        return nil
    end
    local range = self.tvb(self.at, length)
    self.at = self.at + length
    return range
end

-- The next number, shown as a field.
function Reader:number(field, length)
    local range = self:take(length)
    if not range then return nil end
    self.tree:add(field, range)
    if length <= 4 then return range:uint() end
    return range:uint64()
end

-- All that is left, shown as a field.
function Reader:rest(field)
    if self:remaining() > 0 then
        self.tree:add(field, self:take(self:remaining()))
    end
end

-- A packet in the form in which it crosses the leg.
local function read_packet(reader, pinfo, root)
    if reader:remaining() < 1 then return reader:fail() end
    local first = reader.tvb(reader.at, 1):uint()
    local version = math.floor(first / 16)
    if version == 4 or version == 6 then
        local dissector = version == 4 and ip or ipv6
        -- A packet that ends within its header is an error there.
        local packet = reader:take(reader:remaining()):tvb()
        if not pcall(dissector.call, dissector, packet, pinfo, root) then reader:fail() end
    elseif first == 0 then
        reader:take(1)
        reader:rest(fields.other)
    elseif first >= 0x80 then
        local range = reader:take(1)
        reader.tree:add(fields.ecn, range)
        if first % 32 == 31 then
            reader:number(fields.cid, 1)
        else
            reader.tree:add(fields.cid, range, first % 32)
        end
        reader:rest(fields.compressed)
    else
        reader:fail()
    end
end

local function read_window(reader)
    reader:number(fields.window_first, 3)
    local range = reader:take(2)
    if not range then return end
    reader.tree:add(fields.window_further, range)
    reader.tree:add(fields.window_length, range)
    for _ = 1, math.floor(range:uint() / 4096) do
        reader:number(fields.range_gap, 1)
        reader:number(fields.range_length, 1)
    end
end

local function read_report(reader)
    reader:number(fields.sent_at, 4)
    local echo, held = reader:take(4), reader:take(4)
    if held and held:uint() ~= NO_ECHO then
        reader.tree:add(fields.echo, echo)
        reader.tree:add(fields.held, held)
    end
    for _, field in ipairs({ fields.received, fields.lost, fields.bursts }) do
        reader:number(field, 8)
    end
    for _, field in ipairs({ fields.next_latency, fields.next_bulk, fields.needs_latency, fields.needs_bulk,
                             fields.requests_first }) do
        reader:number(field, 4)
    end
    local ranges = reader:number(fields.requests, 1) or 0
    if ranges > MAX_REQUESTS then return reader:fail() end
    for index = 1, ranges do
        if index > 1 then reader:number(fields.range_gap, 2) end
        reader:number(fields.range_length, 2)
    end
    for _ = 1, reader:number(fields.confirmations, 1) or 0 do
        if reader.failed then return end
        reader:number(fields.cid, 1)
        reader:number(fields.generation, 2)
    end
    if reader:remaining() > 0 then reader:fail() end
end

local function read_contexts(reader)
    while reader:remaining() > 0 and not reader.failed do
        reader:number(fields.cid, 1)
        reader:number(fields.generation, 2)
        local template = reader:take(reader:number(fields.template_length, 1) or 0)
        if template and template:len() > 0 then reader.tree:add(fields.template, template) end
    end
end

local function read_hello_body(reader)
    reader:number(fields.hello_asks, 1)
    local echo = reader:take(16)
    if echo then reader.tree:add(fields.hello_echo, echo) end
    if reader:remaining() > 0 then reader:fail() end
end

-- What is behind the header of a frame that has no cipher.
local function read_body(kind, reader, pinfo, root)
    if kind == HELLO then
        read_hello_body(reader)
    elseif kind == SOURCE_LATENCY or kind == SOURCE_BULK then
        reader:number(fields.esi, 3)
        if not reader.failed then read_packet(reader, pinfo, root) end
    elseif kind == REPAIR_LATENCY or kind == REPAIR_BULK then
        reader:number(fields.repair_key, 2)
        read_window(reader)
        if not reader.failed then reader:rest(fields.symbol) end
    elseif kind == REPORT then
        read_report(reader)
    elseif kind == CONTEXTS then
        read_contexts(reader)
    end
end

-- What is behind the header of a frame that has one.
local function read_sealed(reader)
    if reader:remaining() < TAG then return reader:fail() end
    local sealed = reader:remaining() - TAG
    if sealed > 0 then reader.tree:add(fields.sealed, reader:take(sealed)) end
    reader.tree:add(fields.tag, reader:take(TAG))
end

local function read_hello(reader, pinfo)
    local cipher = reader:number(fields.cipher, 1)
    local nonce = reader:take(16)
    if nonce then reader.tree:add(fields.nonce, nonce) end
    reader:number(fields.hello_number, 8)
    if cipher and not pinfo.visited then state.ciphers[pair_of(pinfo)] = cipher end
    return cipher == INSECURE
end

local function read_session(reader, pinfo, info)
    local key_id = reader:number(fields.key_id, 1)
    local low = reader:number(fields.number, 3)
    if not low then return false end
    local epoch = epoch_of(pinfo, key_id, low)
    reader.tree:add(fields.epoch, reader.tvb(2, 3), epoch):set_generated()
    info[#info + 1] = string.format("key id 0x%02x, number %d", key_id, low)
    return protect.prefs.cleartext or state.ciphers[pair_of(pinfo)] == INSECURE
end

function protect.dissector(tvb, pinfo, root)
    if tvb:len() == 0 then return 0 end
    local first = tvb(0, 1):uint()
    local kind = first % 16
    pinfo.cols.protocol = "bentpipe"
    local tree = root:add(protect, tvb(), "bentpipe protected leg, " .. (kinds[kind] or "unknown kind"))
    tree:add(fields.version, tvb(0, 1))
    tree:add(fields.kind, tvb(0, 1))
    if math.floor(first / 16) ~= VERSION or not kinds[kind] then
        pinfo.cols.info = "unknown version or kind"
        tree:add_proto_expert_info(unknown)
        return tvb:len()
    end
    local info = { kinds[kind] }
    if classes[kind] then tree:add(fields.class, tvb(0, 1), classes[kind]):set_generated() end
    local reader = Reader.new(tvb, 1, tvb:len(), tree)
    local cleartext
    if kind == HELLO then
        cleartext = read_hello(reader, pinfo)
    else
        cleartext = read_session(reader, pinfo, info)
    end
    if not reader.failed then
        info[#info + 1] = string.format("%d bytes%s", reader:remaining(), cleartext and "" or ", encrypted")
        pinfo.cols.info = table.concat(info, ", ")
        if cleartext then
            read_body(kind, reader, pinfo, root)
        else
            read_sealed(reader)
        end
    else
        pinfo.cols.info = table.concat(info, ", ")
    end
    return tvb:len()
end

DissectorTable.get("udp.port"):add(PORT, protect)
