//! Named limits on everything that a stranger or a bug could make large. Each says why it has its size.

/// Largest frame body on any wire, in bytes: two full log entries, so that forwarding never splits a batch.
pub const FRAME_BYTES_MAX: usize = 3 << 20;
/// Largest log entry body, in bytes: the largest job with an environment of 1 MB, and what belongs to it.
pub const ENTRY_BYTES_MAX: usize = 1_536 << 10;
/// Proposals are put together into one entry up to this many bytes: it is fsynced whole, and more only adds latency.
pub const BATCH_BYTES_MAX: usize = 512 << 10;
/// Most proposals in one log entry: past this, batching gains nothing and latency grows.
pub const ENTRY_PROPOSALS_MAX: usize = 1_024;
/// Largest snapshot chunk on the wire, in bytes.
pub const SNAPSHOT_CHUNK_BYTES_MAX: usize = 512 << 10;
/// Largest snapshot file that a peer accepts, in bytes (1 GiB: about 1 M pending jobs).
pub const SNAPSHOT_BYTES_MAX: usize = 1 << 30;
/// Largest stored job spec, in bytes: script, environment and standard input included.
pub const SPEC_BYTES_MAX: usize = 1_280 << 10;
/// Longest standard input that is kept with a job, in bytes: each replica holds it until the job is over.
pub const STDIN_BYTES_MAX: usize = 256 << 10;
/// Longest path, in bytes: the kernel's own limit.
pub const PATH_BYTES_MAX: usize = 4_095;
/// Least output of a stream that a job may ask to be kept, in bytes: a head and a tail that say something.
pub const OUTPUT_BYTES_MIN: u64 = 64 << 10;
/// Most output of a stream that a job may ask to be kept, in bytes; hosts may set less.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 30;
/// Longest name of a job, host, user, tenant, model or label, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest single argument or environment value, in bytes (the kernel's own limit for one string is 128 KiB).
pub const ARG_BYTES_MAX: usize = 128 << 10;
/// Most arguments of one command, and most environment variables.
pub const ARGS_MAX: usize = 4_096;
/// Most elements of one array job.
pub const ARRAY_TASKS_MAX: u32 = 10_000_000;
/// Most devices that one host may register: 16 cards of 7 MIG slices each.
pub const HOST_DEVICES_MAX: usize = 128;
/// Most whole GPUs one task can ask of one host.
pub const GPUS_PER_TASK_MAX: u32 = 128;
/// Highest priority; 50 is the default.
pub const PRIORITY_MAX: u16 = 100;
/// Default priority.
pub const PRIORITY_DEFAULT: u16 = 50;
/// Longest time limit, in ms: ten years; more is a typing error.
pub const TIME_LIMIT_MS_MAX: u64 = 10 * 366 * 24 * 3_600 * 1_000;
/// Longest grace between TERM and KILL, in ms.
pub const GRACE_MS_MAX: u32 = 3_600_000;
/// Most retries a user may ask for.
pub const RETRIES_MAX: u16 = 1_000;
/// Longest reason or message kept in state, in bytes.
pub const REASON_BYTES_MAX: usize = 512;
/// How long a request id is remembered, in ms (24 h).
pub const DEDUP_MS: u64 = 24 * 3_600 * 1_000;
/// Most moves in one plan: larger plans are cut, the next round goes on.
pub const PLAN_MOVES_MAX: usize = 1_024;
/// Most attempt reports in one command.
pub const REPORTS_MAX: usize = 1_024;
/// Most bytes of log text in one reply.
pub const LOG_CHUNK_BYTES_MAX: usize = 256 << 10;
/// Most rows in one list reply; more are paged.
pub const LIST_ROWS_MAX: usize = 10_000;
/// Largest gossip payload, in bytes: must fit one QUIC datagram after headers.
pub const GOSSIP_BYTES_MAX: usize = 1_100;
/// Deepest path of a queue: more levels than any organisation has.
pub const QUEUE_DEPTH_MAX: usize = 8;
/// Most queues of one cluster.
pub const QUEUES_MAX: usize = 10_000;
/// Most parts of one gang: with 8 cards each its start still fits into one log entry.
pub const GANG_PARTS_MAX: u32 = 1_024;
/// Most jobs that one job may wait for.
pub const DEPENDENCIES_MAX: usize = 256;
/// Most further asks that a job would be content with.
pub const ALTERNATIVES_MAX: usize = 8;
/// Most victims of one move.
pub const VICTIMS_MAX: usize = 16_384;
/// Most advance reservations, and most hosts named by one.
pub const RESERVATIONS_MAX: usize = 1_024;
/// Most of a warning that an eviction waits for, in ms: whoever was given its devices waits as long.
pub const EVICTION_WARNING_MS_MAX: u32 = 30_000;
/// Longest warning before an end, in ms.
pub const WARN_MS_MAX: u32 = 24 * 3_600 * 1_000;
/// Most GPU models of which one job says its speed.
pub const PACE_SPEEDS_MAX: usize = 32;
/// Most hosts of one cluster: the product is built for thousands, ids beyond this are a loop somewhere.
pub const HOSTS_MAX: usize = 20_000;
/// Most memory that one host may offer, in MiB (1 PiB), as for an ask: more is an error code or a limit that is none.
pub const HOST_MEM_MIB_MAX: u64 = 1 << 30;
/// Most inputs of one job.
pub const INPUTS_MAX: usize = 64;
/// Longest name of an input, in bytes: a short path.
pub const INPUT_NAME_BYTES_MAX: usize = 255;
/// Most bytes of a blob in one request or reply.
pub const BLOB_PIECE_BYTES_MAX: usize = 512 << 10;
/// Most renewals of leases in one request between peers: all hosts of a large cluster at once.
pub const RENEWALS_MAX: usize = 1_024;
