//! The writer of the access log: from the queue to a file or the journal.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bentpipe_kernel::journal::Journal;
use bentpipe_kernel::privileges::Account;
use rustix::event::{PollFd, PollFlags, poll};

use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::access_log::{AccessLog, Line, LogFile, Lost, Record};
use crate::config::{AccessLogSettings, Config, LogFormat};
use crate::error::{Error, Refusal};
use crate::stats::Counters;
use crate::types::mailbox::Mailbox;

/// What the log calls the thread.
const TITLE: &str = "the access log";
/// Bytes of lines that are written at once, at most about.
const BATCH: usize = 64 << 10;
/// Between two batches, so that many connections that end cost few system calls.
const PAUSE: Duration = Duration::from_millis(10);

/// The access log.
#[derive(Debug)]
pub(super) struct AccessLogService {
    /// Those in force.
    settings: AccessLogSettings,
    counters: Arc<Counters>,
    queue: Option<Arc<AccessLog>>,
    thread: Option<ServiceThread<Reload, Writer>>,
    /// While no thread has it: before the start, or paused.
    writer: Option<Writer>,
}

/// Other settings, for the connections that end from now on.
#[derive(Debug)]
struct Reload {
    settings: AccessLogSettings,
    /// The place in the queue of the first record that they are for.
    from: u64,
}

/// Where lines go.
#[derive(Debug)]
enum Sink {
    File(LogFile, LogFormat),
    Journal(Journal),
}

#[derive(Debug)]
struct Writer {
    sink: Sink,
    counters: Arc<Counters>,
    buffer: String,
    writing: Trouble,
    rotating: Trouble,
}

/// Something that does not work: it is said once, and so is its end.
#[derive(Debug, Default)]
struct Trouble {
    is_told: bool,
}

impl AccessLogService {
    /// Opens the file with the rights of root. Where that fails the account may open it at the start: it owns
    /// the file that it has made at the last rotation. Where that fails, too, connections are served
    /// nonetheless, and their lines are lost until it can be opened.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Self {
        let (settings, counters) = (preparation.config.access_log.clone(), Arc::<Counters>::default());
        let mut writer = settings.is_on().then(|| Writer::new(&settings, counters.clone()));
        if let Some(Writer { sink: Sink::File(file, _), .. }) = &mut writer {
            let _ = file.open();
        }
        Self { settings, counters, queue: None, thread: None, writer }
    }

    /// Gives the writer to a thread. `AccessLog` takes records from then on.
    fn run(&mut self, writer: Writer) -> Result<(), Error> {
        let Some(queue) = self.queue.clone() else { return Ok(()) };
        let mut thread = ServiceThread::new(TITLE)?;
        let (mailbox, records) = (thread.mailbox().clone(), queue.clone());
        thread.run("bentpipe-log", move |stop| writer.run(&records, &mailbox, stop))?;
        self.thread = Some(thread);
        queue.set_on(true);
        Ok(())
    }

    /// Takes the writer back; it has written what was in the queue.
    fn stop(&mut self) -> Option<Writer> {
        let writer = self.thread.take()?.stop()?;
        Some(writer)
    }

    /// Writes what is in the queue, without a thread.
    fn finish(&mut self, mut writer: Writer) {
        if let Some(queue) = &self.queue {
            writer.write(&queue.take().into_records());
        }
    }
}

impl Service for AccessLogService {
    fn name(&self) -> &'static str {
        "access_log"
    }

    /// A file that cannot be written to is an error as long as somebody is there to read it.
    fn check(&self, config: &Config) -> Result<(), Refusal> {
        let settings = &config.access_log;
        match &settings.file {
            Some(path) if settings.file != self.settings.file => LogFile::new(path.clone(), 0, 1)
                .open()
                .map_err(|error| Refusal::of("access_log.file", advice(path, &error))),
            _ => Ok(()),
        }
    }

    fn give_files_to(&self, account: Account) {
        if let Some(Writer { sink: Sink::File(file, _), .. }) = &self.writer
            && let Err(error) = file.give_to(account)
        {
            let path = file.path().display();
            tracing::warn!("cannot give {path} to the account of the daemon: {error}; chown it");
        }
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        self.queue = Some(context.shared.access_log.clone());
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.begin();
        self.run(writer)
    }

    fn unpause(&mut self, _context: &Context) -> Result<(), Error> {
        match self.writer.take() {
            Some(writer) => self.run(writer),
            None => Ok(()),
        }
    }

    /// Also opens the file again, which another program may have renamed.
    fn reload(&mut self, context: &Context) {
        self.settings = context.config.access_log.clone();
        match (&self.thread, self.settings.is_on()) {
            (Some(thread), true) => {
                let from = context.shared.access_log.end();
                thread.send(Reload { settings: self.settings.clone(), from });
            }
            (Some(_), false) => {
                context.shared.access_log.set_on(false);
                if let Some(writer) = self.stop() {
                    self.finish(writer);
                }
            }
            (None, true) => {
                let mut writer = Writer::new(&self.settings, self.counters.clone());
                writer.begin();
                if let Err(error) = self.run(writer) {
                    tracing::error!("there is no access log: {error}");
                }
            }
            (None, false) => {}
        }
    }

    fn pause(&mut self) {
        self.writer = self.stop();
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        vec![self.counters.clone()]
    }

    /// The last connections end with the workers.
    fn outlives_workers(&self) -> bool {
        true
    }
}

impl Drop for AccessLogService {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take().or_else(|| self.stop()) {
            self.finish(writer);
        }
    }
}

impl Writer {
    fn new(settings: &AccessLogSettings, counters: Arc<Counters>) -> Self {
        let sink = match &settings.file {
            Some(path) => {
                let file = LogFile::new(path.clone(), settings.max_size(), settings.keep());
                Sink::File(file, settings.format)
            }
            None => Sink::Journal(Journal::default()),
        };
        let (writing, rotating) = Default::default();
        Self { sink, counters, buffer: String::new(), writing, rotating }
    }

    /// Opens the file, unless root has, as the account that the process runs as.
    fn begin(&mut self) {
        if matches!(&self.sink, Sink::File(file, _) if !file.is_open()) {
            self.open();
        }
        self.warn_of_rotation();
    }

    /// Writes records until the flag is set, and then those that are left.
    fn run(mut self, queue: &AccessLog, mailbox: &Mailbox<Reload>, stop: &AtomicBool) -> Self {
        while !stop.load(Ordering::Acquire) {
            let _ = poll(&mut [PollFd::new(queue, PollFlags::IN), PollFd::new(mailbox, PollFlags::IN)], None);
            self.turn(queue, mailbox);
            if !stop.load(Ordering::Acquire) {
                std::thread::sleep(PAUSE);
            }
        }
        self.turn(queue, mailbox);
        self
    }

    /// Writes what is in the queue, each record as the settings of its time want it.
    fn turn(&mut self, queue: &AccessLog, mailbox: &Mailbox<Reload>) {
        // In this order: the settings for a record that has been taken are in the mailbox.
        let mut taken = queue.take();
        for Reload { settings, from } in mailbox.take() {
            self.write(&taken.before(from));
            self.configure(&settings);
        }
        self.write(&taken.into_records());
    }

    /// Follows other settings, or opens the same file again.
    fn configure(&mut self, settings: &AccessLogSettings) {
        match (&mut self.sink, &settings.file) {
            (Sink::File(file, format), Some(path)) if file.path() == path => {
                file.set_limits(settings.max_size(), settings.keep());
                *format = settings.format;
                self.open();
            }
            _ => *self = Self::new(settings, self.counters.clone()),
        }
        self.begin();
    }

    fn open(&mut self) {
        if let Sink::File(file, _) = &mut self.sink
            && let Err(error) = file.open()
        {
            self.writing.tell(&format!("lines of the access log are lost: {}", advice(file.path(), &error)));
        }
    }

    /// As the account that it runs as.
    fn warn_of_rotation(&self) {
        if let Sink::File(file, _) = &self.sink
            && let Err(error) = file.check_rotation()
        {
            let path = file.path().display();
            tracing::warn!(
                "the daemon cannot rotate {path}, because it may not write to its folder: {error}; let the folder belong \
                 to the daemon's account, or rotate the file with logrotate and reload"
            );
        }
    }

    fn write(&mut self, records: &VecDeque<Record>) {
        match &mut self.sink {
            Sink::Journal(journal) => {
                let lines = records.iter().map(|record| Line::of(record).journal_fields());
                let (mut lost, mut last) = (0, Ok(()));
                for fields in lines {
                    // One failure is waited for, not thousands.
                    last = last.and_then(|()| journal.send("bentpipe-access", &fields));
                    lost += u64::from(last.is_err());
                }
                if !records.is_empty() {
                    self.settle(last.map_err(|error| Lost { lines: lost, error }));
                }
            }
            Sink::File(file, format) => {
                let (format, batch) = (*format, BATCH.min(file.small_part()));
                for record in records {
                    Line::of(record).write(format, &mut self.buffer);
                    if self.buffer.len() >= batch {
                        self.flush();
                    }
                }
                self.flush();
            }
        }
    }

    /// Writes the lines in the buffer.
    fn flush(&mut self) {
        let Self { sink: Sink::File(file, _), buffer, rotating, .. } = self else { return };
        if buffer.is_empty() {
            return;
        }
        let path = file.path().display().to_string();
        let outcome = file.append(buffer.as_bytes(), |outcome| match outcome {
            Ok(()) => rotating.is_over(&format!("{path} has been rotated again")),
            Err(error) => rotating.tell(&format!("cannot rotate {path}, which grows: {error}")),
        });
        buffer.clear();
        self.settle(outcome);
    }

    fn settle(&mut self, outcome: Result<(), Lost>) {
        match outcome {
            Ok(()) => self.writing.is_over("the access log is written again"),
            Err(Lost { lines, error }) => {
                self.counters.access_log_lost.add(lines);
                let reason = match &self.sink {
                    Sink::File(file, _) => advice(file.path(), &error),
                    Sink::Journal(_) => {
                        format!("cannot send to the journal: {error}; is systemd-journald running?")
                    }
                };
                self.writing.tell(&format!("lines of the access log are lost, and counted: {reason}"));
            }
        }
    }
}

impl Trouble {
    fn tell(&mut self, text: &str) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::error!("{text}");
        }
    }

    fn is_over(&mut self, text: &str) {
        if std::mem::take(&mut self.is_told) {
            tracing::info!("{text}");
        }
    }
}

/// Why a file cannot be written to, and what to do.
fn advice(path: &Path, error: &std::io::Error) -> String {
    use std::io::ErrorKind::*;
    let what = match error.kind() {
        NotFound => "create the folder",
        PermissionDenied | ReadOnlyFilesystem => {
            "let the folder and the file belong to the daemon's account, and be among its unit's ReadWritePaths= or LogsDirectory="
        }
        StorageFull | QuotaExceeded => "make room; it goes on by itself",
        _ => "name another file",
    };
    format!("cannot write to {}: {error}; {what}", path.display())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bentpipe_legs::Legs;

    use super::*;
    use crate::access_log::Ending;
    use crate::config::Handshake;
    use crate::types::Side;
    use crate::types::leg_pair::{LegId, LegPair};

    fn record(port: u16) -> Record {
        let (client, server, weight) = (LegId::Terrestrial, LegId::Terrestrial, Default::default());
        let legs = Legs::prepare(&Default::default(), &Default::default());
        let end = ([192, 0, 2, 1], port).into();
        Record {
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            client: end,
            server: end,
            dscp: 0,
            pair: LegPair { client, server, weight, port: 0 },
            legs: Arc::new(legs),
            up: 0,
            down: 0,
            ending: Ending::Closed(Side::Client),
            retransmissions: [0; 2],
            handshake: Handshake::Early,
        }
    }

    /// The writer is a moment behind, so it finds all of this at once.
    #[test]
    fn a_reload_is_for_the_records_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = |name: &str| AccessLogSettings {
            file: Some(folder.path().join(name)),
            format: LogFormat::Text,
            ..AccessLogSettings::default()
        };
        let (queue, mailbox) = (AccessLog::new().unwrap(), Mailbox::new(TITLE.into()).unwrap());
        let mut writer = Writer::new(&settings("0"), Arc::default());
        // One in an earlier turn, so that places are not indices.
        queue.push(record(1)).unwrap();
        writer.turn(&queue, &mailbox);
        for (port, name) in [(2, "1"), (3, "2"), (4, "3")] {
            queue.push(record(port)).unwrap();
            mailbox.send(Reload { settings: settings(name), from: queue.end() });
        }
        queue.push(record(5)).unwrap();
        writer.turn(&queue, &mailbox);
        let ports = |name: &str| -> Vec<u16> {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let port =
                |line: &str| line.split(' ').find_map(|field| field.strip_prefix("192.0.2.1:")?.parse().ok());
            text.lines().map(|line| port(line).unwrap()).collect()
        };
        assert_eq!(["0", "1", "2", "3"].map(ports), [vec![1, 2], vec![3], vec![4], vec![5]]);
    }
}
