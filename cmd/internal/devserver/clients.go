package devserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/wire"
)

// NATSOwner is the name with which the owner of the state directory connects to NATS; his token is the password.
const NATSOwner = "owner"

// maxClients is how many connections NATS takes: two for each host that has joined, its own and that of its proxy, so
// those of four thousand hosts. A stranger has one for as long as he takes to show who he is, and a file of this
// process with it, of which systemd and Go's start leave half a million.
const maxClients = 8192

// What one client of NATS may have the server hold: bytes that it does not read, four times the largest message, and
// subscriptions, a hundred times what the engine's own connections have.
const (
	maxPending       = 4 * MaxPayload
	maxSubscriptions = 10_000
)

// natsClients says who may connect to NATS. Parts of this process, which come over a pipe, and the owner of the state
// directory may do everything, the workflow worker of a build and a host that has joined what they need, and nobody
// else anything.
type natsClients struct {
	keys   *access.Keys
	logger *slog.Logger
	proxy  atomic.Pointer[natsaccess.Proxy]              // nil before builds are let in
	isHost atomic.Pointer[func(host, shown string) bool] // nil before hosts are
}

var _ natsserver.Authentication = (*natsClients)(nil)

// Check implements natsserver.Authentication.
func (c *natsClients) Check(client natsserver.ClientAuthentication) bool {
	if address := client.RemoteAddress(); address != nil && address.Network() == "pipe" {
		return true
	}
	name, password := client.GetOpts().Username, client.GetOpts().Password
	if name == NATSOwner {
		return c.keys.IsToken(password)
	}
	proxy := c.proxy.Load()
	if proxy == nil || !c.shows(name, password) {
		return false
	}
	err := proxy.Register(client, name)
	if err != nil { // at debug level: it can cause as many as it likes
		c.logger.Debug("a workflow worker or a host is not let into NATS", "name", name, "error", err)
	}
	return err == nil
}

// shows says whether a client has shown that it is who it says: a host that has joined, or the worker of a build.
func (c *natsClients) shows(name, password string) bool {
	host, is := strings.CutPrefix(name, wire.HostUserPrefix)
	if !is {
		return c.keys.IsBuildToken(name, password)
	}
	isHost := c.isHost.Load()
	return isHost != nil && (*isHost)(host, password)
}

// admit lets the workflow worker of a build in until release is called, and returns its name and its password.
func (c *natsClients) admit(app wire.App, build string) (user *url.Userinfo, release func(), err error) {
	name := wire.WorkflowQueue(app.Name, build)
	if release, err = c.proxy.Load().Admit(name, app); err != nil {
		return nil, nil, err
	}
	return url.UserPassword(name, c.keys.BuildToken(name)), release, nil
}

// writeContext writes the configuration with which the nats command connects as the owner.
func writeContext(dir, address string, keys *access.Keys) error {
	encoded, err := json.MarshalIndent(map[string]string{
		"description": "Spillway, state directory " + dir, "url": address, "user": NATSOwner, "password": keys.Token(),
		"inbox_prefix": "_INBOX_" + NATSOwner,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", access.NATSFile, err)
	}
	return access.Write(dir, access.NATSFile, string(encoded))
}

// ofClient says whether a message of NATS's log is about one of its clients: whoever knocks at the port can cause it as
// often as he likes.
func ofClient(format string) bool { return strings.Contains(format, " - cid:") }
