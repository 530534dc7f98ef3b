//! One call of everything that `.clippy.toml` bans. Never run: `.ci/run` counts what clippy says of it.

#[tokio::main]
async fn main() {
    drop(tokio::spawn(async {}));
    drop(tokio::sync::mpsc::unbounded_channel::<()>());
    std::thread::sleep(std::time::Duration::ZERO);
    drop(std::env::var("HOME"));
    std::process::exit(0);
}
