package natsaccess

import (
	"crypto/rand"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// Join makes a server one that keeps nothing, and a leaf node of those at which remote says that they take one, so that
// a Proxy can let builds in before them (https://docs.nats.io/running-a-nats-service/configuration/leafnodes). Its
// global account is that of the engine there, for which they must let leaf nodes ask JetStream by
// default_js_domain: {ACCOUNT: ""}.
func Join(options *natsserver.Options, remote natsserver.RemoteLeafOpts) {
	options.JetStream, options.StoreDir = false, ""
	options.ServerName = "spillway-" + rand.Text() // of two leaf nodes of one name the older is sent away
	// Requests of JetStream go to the others as they are. Without this the server keeps them to itself.
	options.JsAccDefaultDomain = map[string]string{natsserver.DEFAULT_GLOBAL_ACCOUNT: ""}
	remote.LocalAccount = natsserver.DEFAULT_GLOBAL_ACCOUNT
	// What a Proxy and its builds say to each other is nobody else's business, nor may others say it.
	private := []string{prefix + ">", unserved + ">"}
	remote.DenyExports, remote.DenyImports = private, private
	options.LeafNode.Remotes = []*natsserver.RemoteLeafOpts{&remote}
}
