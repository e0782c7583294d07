//! Who belongs to a cluster (106) and to a broker name (901). Integer keys stay unquoted whoever asks.

use super::route::BrokerData;
use super::{json_body, lenient};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterInfo {
    /// By broker name.
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Cluster name to broker names.
    #[serde(deserialize_with = "lenient::or_default")]
    pub cluster_addr_table: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_addrs: BTreeMap<i64, String>,
    #[serde(deserialize_with = "lenient::text")]
    pub broker_name: String,
    #[serde(deserialize_with = "lenient::text")]
    pub cluster: String,
}

/// The answer to GET_BROKER_MEMBER_GROUP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerMemberGroupBody {
    #[serde(deserialize_with = "lenient::or_default")]
    pub broker_member_group: BrokerMemberGroup,
}

json_body!(java: ClusterInfo, BrokerMemberGroupBody);
