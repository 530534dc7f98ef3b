//! Proxy variables that stand between the program and an emulator on this machine.
//!
//! Google's REST client takes the usual proxy variables and offers no switch. A proxy elsewhere cannot reach this
//! machine's loopback: the call would wait until its retries are spent.

/// Variables that the client reads, in its order for `http://` URLs.
const PROXIES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
const EXCEPTIONS: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// The variable that sends requests to `url` through a proxy, if `url` is plain HTTP on this machine's loopback.
pub(super) fn in_the_way_of(url: &str) -> Option<&'static str> {
    let authority = url.strip_prefix("http://")?.split('/').next()?;
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let loopback = host == "localhost" || host.starts_with("127.") || host == "[::1]";
    let excepted = EXCEPTIONS.into_iter().find_map(set).is_some_and(|list| excepts(&list, host));
    if loopback && !excepted { PROXIES.into_iter().find(|variable| set(variable).is_some()) } else { None }
}

fn excepts(list: &str, host: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|entry| entry == "*" || entry == host || (entry == "127.0.0.0/8" && host != "localhost"))
}

#[expect(clippy::disallowed_methods, reason = "part of the configuration")]
fn set(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::excepts;

    #[test]
    fn exceptions_name_the_host_or_everything() {
        for list in ["127.0.0.1", "example.org, 127.0.0.1", "*", "127.0.0.0/8"] {
            assert!(excepts(list, "127.0.0.1"), "{list}");
        }
        for list in ["", "localhost", "example.org"] {
            assert!(!excepts(list, "127.0.0.1"), "{list}");
        }
    }
}
