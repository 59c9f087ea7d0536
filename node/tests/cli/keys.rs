//! Keys that others can read (fault S22): the agent does not start, and says which command mends it.

use super::output;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn s22_an_agent_does_not_start_with_a_key_that_others_can_read() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("n1");
    let rota = || Command::new(env!("CARGO_BIN_EXE_rota"));
    let (status, _, err) = output(rota().args(["init", "--name", "n1", "--data-dir"]).arg(&dir));
    assert_eq!(status, 0, "{err}");
    for file in ["host-key.pem", "ca-key.pem"] {
        let path = dir.join("identity").join(file);
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o644);
        let (status, _, err) = output(rota().args(["agent", "--http-listen", "off", "--data-dir"]).arg(&dir));
        assert_ne!(status, 0);
        assert!(err.contains(&format!("chmod 600 {}", path.display())), "{err}");
        mode(0o600);
    }
}
