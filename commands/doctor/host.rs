//! Processor, memory, limits and clock of this host. What the system does not tell is said to be unknown.

use std::fs::read_to_string;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::files::Need;
use super::{Check, Verdict, gb};

/// Files and sockets a worker has open at most: those of a checkpoint, its listeners and their clients.
const FILES_MIN: u64 = 256;
/// Frame buffers and the forward pass beside the weights.
const BESIDE_WEIGHTS: u64 = 300_000_000;
/// A question to the clock's service takes no longer.
const CLOCK_WAIT: Duration = Duration::from_secs(2);

/// Processor features that matter to the forward pass, as far as they are there.
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("AVX2", std::is_x86_feature_detected!("avx2")),
            ("FMA", std::is_x86_feature_detected!("fma")),
            ("F16C", std::is_x86_feature_detected!("f16c")),
            ("AVX-512", std::is_x86_feature_detected!("avx512f")),
        ];
        found.extend(known.iter().filter(|(_, there)| *there).map(|(name, _)| *name));
    }
    #[cfg(target_arch = "aarch64")]
    found.push("NEON");
    found
}

/// Threads, features, and what limits them.
pub(super) fn cpu() -> Check {
    let threads = available_parallelism().map_or(1, usize::from);
    let mut detail = format!("{threads} threads");
    let online = read_to_string("/sys/devices/system/cpu/online").ok();
    if let Some(all) = online.as_deref().and_then(listed).filter(|all| *all > threads) {
        detail += &format!(" of {all} (limited by affinity or a control group)");
    }
    for feature in features() {
        detail += &format!(", {feature}");
    }
    let nodes = read_to_string("/sys/devices/system/node/online").ok();
    let nodes = nodes.as_deref().and_then(listed).unwrap_or(1);
    if nodes > 1 {
        detail += &format!(", {nodes} NUMA nodes");
        return Check::new("cpu", Verdict::Ok, detail)
            .hint("bind the worker to the node of its card and link: numactl --cpunodebind");
    }
    Check::new("cpu", Verdict::Ok, detail)
}

/// How many a list like `0-3,8` names.
fn listed(list: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').map(range).try_fold(0_usize, |sum, n| sum.checked_add(n?))
}

/// Memory that is available, against what drafting on the CPU takes.
pub(super) fn memory(need: &Need) -> Check {
    const NAME: &str = "memory";
    let info = read_to_string("/proc/meminfo").unwrap_or_default();
    let (Some(available), Some(total)) = (kib(&info, "MemAvailable:"), kib(&info, "MemTotal:"))
    else {
        return Check::new(NAME, Verdict::Skipped, "unknown: no /proc/meminfo");
    };
    let limit = group_limit();
    let available = available.min(limit.unwrap_or(u64::MAX));
    let needed = need.weights.saturating_add(BESIDE_WEIGHTS);
    let limited = limit
        .map_or(String::new(), |limit| format!(", the control group's limit is {}", gb(limit)));
    let detail = format!(
        "{} of {} available{limited}; {} takes about {} on the CPU",
        gb(available),
        gb(total),
        need.whose,
        gb(needed)
    );
    if available >= needed {
        Check::new(NAME, Verdict::Ok, detail)
    } else {
        // Weights are mapped files: less memory is slow, not impossible.
        Check::new(NAME, Verdict::Warn, detail)
            .hint("weights that do not fit are read from the disk again and again")
    }
}

/// A line of /proc/meminfo, in bytes.
fn kib(info: &str, key: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The memory limit of this process' control group, where it has one of its own (version 2).
fn group_limit() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
    let limit = read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).ok()?;
    // "max" is none.
    limit.trim().parse().ok()
}

/// Limits of this process, which a worker started the same way inherits.
pub(super) fn limits() -> [Check; 2] {
    let said = |limit: Option<u64>, unit: &dyn Fn(u64) -> String| {
        limit.map_or("unlimited".to_owned(), unit)
    };
    let files = getrlimit(Resource::Nofile).current;
    let detail = format!("{} open files", said(files, &|n| n.to_string()));
    let nofile = if files.is_none_or(|n| n >= FILES_MIN) {
        Check::new("nofile", Verdict::Ok, detail)
    } else {
        Check::new("nofile", Verdict::Warn, detail)
            .hint(format!("ulimit -n {FILES_MIN}, or LimitNOFILE= of the service"))
    };
    let locked = getrlimit(Resource::Memlock).current;
    let detail = format!(
        "{} of locked memory; tcp:// and the GPU's page-locked buffers do not count against it",
        said(locked, &gb)
    );
    [nofile, Check::new("memlock", Verdict::Ok, detail)]
}

/// Whether times of this host can be compared with another's, and what the monotonic clock is read from.
pub(super) fn clock() -> Check {
    const NAME: &str = "clock";
    let source = read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or("unknown".to_owned(), |text| text.trim().to_owned());
    let before = Instant::now();
    sleep(Duration::from_millis(1));
    if before.elapsed() < Duration::from_millis(1) {
        let detail = format!("the monotonic clock does not advance (source {source})");
        return Check::new(NAME, Verdict::Failed, detail)
            .hint("timeouts will not work on this host");
    }
    if ["hpet", "acpi_pm", "jiffies"].contains(&source.as_str()) {
        return Check::new(NAME, Verdict::Warn, format!("slow source {source}"))
            .hint("every measured time costs microseconds; see 'clocksource=' of the kernel");
    }
    match synchronised().as_deref() {
        Some("yes") => Check::new(NAME, Verdict::Ok, format!("synchronised, source {source}")),
        Some("no") => Check::new(NAME, Verdict::Warn, format!("not synchronised, source {source}"))
            .hint("drafting does not mind; times in logs of two hosts cannot be compared"),
        _ => Check::new(NAME, Verdict::Ok, format!("source {source}; synchronisation unknown")),
    }
}

/// What systemd says, if it is there and answers in time.
fn synchronised() -> Option<String> {
    let mut child = Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let asked = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if asked.elapsed() > CLOCK_WAIT {
            // Ended meanwhile is as good.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.stdout.take()?.take(64).read_to_string(&mut said).ok()?;
    Some(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(listed("0\n"), Some(1));
        assert_eq!(listed("0-15,32-47\n"), Some(32));
        assert_eq!((listed(""), listed("3-1"), listed("a-b")), (None, None, None));
        assert_eq!(listed("0-18446744073709551615"), None);
    }

    #[test]
    fn memory_lines_are_read_in_kib() {
        let info = "MemTotal:       16 kB\nMemAvailable:    8 kB\nOdd: 9\n";
        assert_eq!((kib(info, "MemAvailable:"), kib(info, "Odd:")), (Some(8192), None));
    }
}
