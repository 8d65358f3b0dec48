#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use super::super::identity::ServerIdentity;
use super::*;

fn preflight(address: &str, accepted: &[Risk]) -> Preflight {
    let address = RedisAddress::parse(address, None).unwrap();
    let settings = RedisSettings { accepted: accepted.to_vec(), ..RedisSettings::default() };
    Preflight::new(&address, &settings)
}

/// What is found out about a server that nothing speaks against.
fn good() -> (Profile, Permissions, Config) {
    let identity = ServerIdentity {
        run_id: "1".to_owned(),
        replication_id: "2".to_owned(),
        is_primary: true,
        ..ServerIdentity::default()
    };
    let profile = Profile {
        identity,
        product: "Redis 6.2.0".to_owned(),
        version: Some(OLDEST_VERSION),
        has_append_only_file: true,
        ..Profile::default()
    };
    let permissions = Permissions {
        lacking: Vec::new(),
        has_hints: true,
        has_peer_channels: true,
        may_list: true,
        lacking_for_records: Vec::new(),
        may_read_config: Some(true),
        loading: Loading::All,
    };
    (profile, permissions, Config::default())
}

#[test]
fn a_server_older_than_the_scripts_need_is_refused_unless_that_is_accepted() {
    let (profile, permissions, config) = good();
    let look = |version, accepted: &[Risk]| {
        let product = "Redis 6.0.16".to_owned();
        let profile = Profile { version, product, ..profile.clone() };
        preflight("redis://host", accepted).judge(profile, permissions.clone(), config.clone())
    };
    let old = look(Some(Version(6, 0)), &[]);
    assert_eq!(old.refusal().as_deref(), Some("Redis 6.0.16 is older than 6.2, which the scripts need"));
    assert!(old.refusals[0].to_string().contains("--redis-accept old-server"), "{}", old.refusals[0]);
    assert_eq!(old.check(), Ok(()), "what is held on it can be released");
    let accepted = look(Some(Version(6, 0)), &[Risk::OldServer]);
    assert_eq!(accepted.refusal(), None);
    assert_eq!(accepted.warnings.len(), 1, "{:?}", accepted.warnings);
    for version in [Some(OLDEST_VERSION), Some(Version(7, 0)), None] {
        let look = look(version, &[]);
        assert!(look.refusals.is_empty() && look.warnings.is_empty(), "{look:?}");
    }
}

#[test]
fn a_server_of_a_quorum_is_refused_to_other_stores_whatever_is_accepted() {
    let (profile, permissions, config) = good();
    let profile = Profile { other_store: Some(OtherStore::Quorum("a:1 b:2 c:3".to_owned())), ..profile };
    for address in ["redis://host", "redis+sentinel://a,b,c/name"] {
        let look = preflight(address, &Risk::ALL).judge(profile.clone(), permissions.clone(), config.clone());
        assert_eq!(look.refusal().as_deref(), Some("it is part of a quorum, which grants the same locks"));
        let said = look.refusals[0].to_string();
        assert!(said.contains("(a:1 b:2 c:3)") && said.contains("fencepost:{quorum}:record"), "{said}");
        assert_eq!(look.check(), Ok(()), "what is held on it can be released");
    }
}

#[test]
fn only_where_nobody_chooses_the_server_is_a_replica_accepted() {
    let (profile, permissions, config) = good();
    let identity = ServerIdentity { is_primary: false, ..profile.identity.clone() };
    let replica = Profile { identity, ..profile };
    let look = |address, accepted: &[Risk]| {
        preflight(address, accepted).judge(replica.clone(), permissions.clone(), config.clone())
    };
    assert_eq!(look("redis://host", &[]).refusals[0].risk, Some(Risk::Replica));
    assert!(look("redis://host", &[]).check().is_err());
    assert_eq!(look("redis://host", &[Risk::Replica]).check(), Ok(()));
    for address in ["redis+sentinel://a,b,c/name", "redis+cluster://a,b"] {
        let look = look(address, &[Risk::Replica]);
        assert!(look.refusals.is_empty() && look.check().is_err(), "it is left: {look:?}");
    }
}

#[test]
fn what_a_failover_may_lose_is_warned_of_where_there_is_one() {
    let (profile, permissions, config) = good();
    for address in ["redis://host", "redis+sentinel://a,b,c/name", "redis+cluster://a,b"] {
        for good_replicas in [None, Some(0)] {
            let profile = Profile { good_replicas, ..profile.clone() };
            let look = preflight(address, &[]).judge(profile, permissions.clone(), config.clone());
            let warns = look.warnings.iter().any(|warning| warning.contains("min-replicas-to-write"));
            assert_eq!(warns, address.contains('+') && good_replicas.is_none(), "{address}");
        }
    }
}

#[test]
fn servers_of_a_quorum_are_warned_of_replicas_and_of_nothing_that_they_keep() {
    let (profile, permissions, config) = good();
    for (replicas, has_append_only_file) in [(0, true), (0, false), (1, true)] {
        let profile = Profile { replicas, has_append_only_file, ..profile.clone() };
        let look = preflight("redlock://a,b,c", &[]).judge(profile, permissions.clone(), config.clone());
        assert_eq!(look.warnings.len(), usize::from(replicas > 0), "{:?}", look.warnings);
    }
}
