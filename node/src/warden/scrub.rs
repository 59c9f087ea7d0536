//! The site's command that cleans cards when their user has left: it overwrites memory, or resets the card. It gets the
//! cards in `ROTA_DEVICES` (UUIDs, apart by commas) and says by its exit code whether they are clean.

use rota_protocol::DeviceUuid;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Most of its last words that are kept for the reason, in bytes.
const WORDS_BYTES_MAX: u64 = 512;

/// Runs it. It is killed at its deadline, and when this is given up.
///
/// # Errors
/// Why the cards are not clean, in words for a person.
pub async fn scrub(command: &[String], cards: &[DeviceUuid], deadline: Duration) -> Result<(), String> {
    let (program, args) = command.split_first().ok_or("no command")?;
    let uuids: Vec<&str> = cards.iter().map(|card| card.0.as_str()).collect();
    let mut child = Command::new(program)
        .args(args)
        .env("ROTA_DEVICES", uuids.join(","))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    let words = child.stderr.take();
    let run = async {
        let mut text = Vec::new();
        if let Some(mut words) = words {
            // What it says is for the reason only; the rest is read too, or it would die of a closed pipe.
            let _ = (&mut words).take(WORDS_BYTES_MAX).read_to_end(&mut text).await;
            let _ = tokio::io::copy(&mut words, &mut tokio::io::sink()).await;
        }
        (child.wait().await, text)
    };
    match tokio::time::timeout(deadline, run).await {
        Err(_) => Err(format!("{program} did not end within {} s", deadline.as_secs())),
        Ok((Err(error), _)) => Err(format!("{program}: {error}")),
        Ok((Ok(status), _)) if status.success() => Ok(()),
        Ok((Ok(status), text)) => {
            let said = String::from_utf8_lossy(&text);
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            Err(format!("{program} ended with {status}: {}", last.trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn it_is_told_the_cards_and_its_code_decides() {
        let cards = [DeviceUuid("GPU-a".into()), DeviceUuid("GPU-b".into())];
        let long = Duration::from_secs(30);
        assert_eq!(scrub(&shell("test \"$ROTA_DEVICES\" = GPU-a,GPU-b"), &cards, long).await, Ok(()));
        let failed = scrub(&shell("echo first >&2; echo memory busy >&2; exit 3"), &cards, long).await;
        assert!(failed.as_ref().is_err_and(|why| why.ends_with("exit status: 3: memory busy")), "{failed:?}");
        let absent = scrub(&["/nonexistent/scrub".to_owned()], &cards, long).await;
        assert!(absent.is_err_and(|why| why.contains("/nonexistent/scrub")));
        let late = scrub(&shell("exec sleep 60"), &cards, Duration::from_millis(50)).await;
        assert!(late.is_err_and(|why| why.contains("did not end")));
    }
}
