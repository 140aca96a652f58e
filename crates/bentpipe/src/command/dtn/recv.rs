use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bentpipe_dtn::app::{Client, Delivery};
use bentpipe_dtn::bundle::FileName;
use bentpipe_units::Span;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde_json::json;

use super::Socket;

/// How long one request waits for a bundle.
const ROUND: Duration = Duration::from_secs(30);
/// How much of a file's name an incomplete file has in its own: names have 255 bytes at most.
const MAX_IN_PARTIAL: usize = 50;

/// Receive the bundles of a service.
///
/// A bundle is acknowledged when its payload is on the disk under its last name: until then the node delivers
/// it again.
#[derive(Debug, Args)]
pub(super) struct Recv {
    /// The service of the own node, as `files` of dtn://gs1/files or `7` of ipn:5.7.
    service: String,
    #[command(flatten)]
    socket: Socket,
    /// The file for the payload; `-` is standard output. By default a file in the folder, with the name that
    /// was sent, or else named after its bundle.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The folder for payloads.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "output")]
    into: PathBuf,
    /// Wait for a bundle at most this long; by default for ever.
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// Bundles to receive.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "output",
          value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Go on for ever.
    #[arg(long, conflicts_with_all = ["count", "output"])]
    follow: bool,
    /// Print a JSON document for each bundle, one on a line.
    #[arg(long)]
    json: bool,
}

impl Recv {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.socket.socket);
        super::runtime()?.block_on(async {
            let mut received = 0;
            while self.follow || received < self.count {
                let Some(delivery) = self.next(&client).await? else {
                    bail!("no bundle for {} has come", self.service);
                };
                self.take(&client, delivery).await?;
                received += 1;
            }
            anyhow::Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn next(&self, client: &Client) -> anyhow::Result<Option<Delivery>> {
        let begun = Instant::now();
        loop {
            let left = self.wait.map(|Span(wait)| wait.saturating_sub(begun.elapsed()));
            let round = left.map_or(ROUND, |left| left.min(ROUND));
            if let Some(delivery) = client.next(&self.service, round).await? {
                return Ok(Some(delivery));
            }
            if left.is_some_and(|left| left <= round) {
                return Ok(None);
            }
        }
    }

    async fn take(&self, client: &Client, mut delivery: Delivery) -> anyhow::Result<()> {
        let begun = Instant::now();
        let to_stdout = self.output.as_deref().is_some_and(|path| path.as_os_str() == "-");
        let file = if to_stdout {
            copy(&mut delivery, &mut io::stdout().lock()).await?;
            None
        } else {
            let path = match &self.output {
                Some(path) => Place::Exactly(path.clone()),
                None => Place::Free(self.into.join(file_name(&delivery))),
            };
            Some(store(&mut delivery, path).await?)
        };
        client.acknowledge(delivery.key).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let Delivery { id, source, len, file_name: name, .. } = &delivery;
        if self.json && !to_stdout {
            let document = json!({
                "id": id, "source": source, "name": name.as_ref().map(FileName::as_str), "payload_bytes": len,
                "file": file, "seconds": seconds,
            });
            return crate::command::print(&format!("{document}\n"));
        }
        match file {
            Some(file) => crate::command::print(&format!("{}  {len} bytes from {source}\n", file.display())),
            None => Ok(()),
        }
    }
}

/// The name that was sent, or one that no other bundle has, of characters that every file system takes.
fn file_name(delivery: &Delivery) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') { c } else { '_' };
    match &delivery.file_name {
        Some(name) => name.to_string(),
        None => delivery.id.chars().map(plain).collect(),
    }
}

/// Where a payload goes.
enum Place {
    /// This file, which it replaces.
    Exactly(PathBuf),
    /// This file, or if there is one `NAME-2`, `NAME-3`, …: another bundle may have had the same name.
    Free(PathBuf),
}

/// Writes a file under another name until it is complete, so that a file with its own name is always
/// complete. Returns the file.
async fn store(delivery: &mut Delivery, place: Place) -> anyhow::Result<PathBuf> {
    let (Place::Exactly(path) | Place::Free(path)) = &place;
    let name = path.file_name().with_context(|| format!("{} is no name for a file", path.display()))?;
    let name: String = name.to_string_lossy().chars().take(MAX_IN_PARTIAL).collect();
    let partial = path.with_file_name(format!(".{name}.{}.part", delivery.key));
    let cannot = || format!("cannot write {}", partial.display());
    let mut file = File::create(&partial).with_context(cannot)?;
    let outcome = async {
        copy(delivery, &mut file).await?;
        file.sync_all().with_context(cannot)?;
        let path = rename(&partial, place)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("cannot make sure that {} lasts", path.display()))?;
        Ok(path)
    };
    outcome.await.inspect_err(|_| drop(std::fs::remove_file(&partial)))
}

/// Gives a complete file its name.
fn rename(partial: &Path, place: Place) -> anyhow::Result<PathBuf> {
    let cannot = |path: &Path| format!("cannot name the payload {}", path.display());
    let wanted = match place {
        Place::Exactly(path) => {
            std::fs::rename(partial, &path).with_context(|| cannot(&path))?;
            return Ok(path);
        }
        Place::Free(path) => path,
    };
    for number in 1_u32.. {
        let path = numbered(&wanted, number);
        match renameat_with(CWD, partial, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(path),
            Err(Errno::EXIST) => {}
            // The file system does not support this: nobody else should write to the folder.
            Err(Errno::INVAL | Errno::NOSYS) if path.exists() => {}
            Err(Errno::INVAL | Errno::NOSYS) => {
                std::fs::rename(partial, &path).with_context(|| cannot(&path))?;
                return Ok(path);
            }
            Err(error) => return Err(error).with_context(|| cannot(&path)),
        }
    }
    bail!("every name like {} is taken", wanted.display())
}

/// `report.pdf`, `report-2.pdf`, `report-3.pdf`, …
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (part(path.file_stem()), part(path.extension()));
    let dot = if extension.is_empty() { "" } else { "." };
    path.with_file_name(format!("{stem}-{number}{dot}{extension}"))
}

async fn copy(delivery: &mut Delivery, to: &mut impl Write) -> anyhow::Result<()> {
    let bar = ProgressBar::new(delivery.len).with_style(
        ProgressStyle::with_template("{bar:40} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}")
            .expect("the template is valid"),
    );
    let mut copied = 0;
    while let Some(part) = delivery.part().await? {
        to.write_all(&part).context("cannot write the payload")?;
        copied += part.len() as u64;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    if copied != delivery.len {
        bail!(
            "{} of the {} bytes of {} have come; the node has them all, try again",
            copied,
            delivery.len,
            delivery.id
        );
    }
    to.flush().context("cannot write the payload")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_a_number_and_nothing_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let partial = folder.path().join(".part");
        let place = |name: &str, content: &str| {
            std::fs::write(&partial, content).unwrap();
            let path = rename(&partial, Place::Free(folder.path().join(name))).unwrap();
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(place("report.pdf", "one"), "report.pdf");
        assert_eq!(place("report.pdf", "two"), "report-2.pdf");
        assert_eq!(place("report.pdf", "three"), "report-3.pdf");
        assert_eq!((place("notes", "one"), place("notes", "two")), ("notes".into(), "notes-2".into()));
        assert_eq!(place("a.tar.gz", "one") + &place("a.tar.gz", "two"), "a.tar.gza.tar-2.gz");
        assert_eq!(std::fs::read_to_string(folder.path().join("report.pdf")).unwrap(), "one");
    }
}
