package devserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/wire"
)

// NATSOwner is the name with which the owner of the state directory connects to NATS; his token is the password.
const NATSOwner = "owner"

// maxClients is how many connections NATS takes: a hundred times what builds need, and few enough that strangers do not
// use up the files that this process may open.
const maxClients = 1024

// natsClients says who may connect to NATS. Parts of this process, which come over a pipe, and the owner of the state
// directory may do everything, the workflow worker of a build what it needs, and nobody else anything.
type natsClients struct {
	keys   *access.Keys
	logger *slog.Logger

	mu     sync.Mutex
	builds map[string][]string // the subjects on which each may publish, by app@build; guarded by mu
	door   *natsaccess.Door    // set before a build is known; guarded by mu
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
	c.mu.Lock()
	defer c.mu.Unlock()
	subjects, known := c.builds[name]
	if !known || !c.keys.IsBuildToken(name, password) {
		return false
	}
	user, err := c.door.User(name, subjects)
	if err != nil {
		c.logger.Error("a workflow worker is not let in", "error", err)
		return false
	}
	client.RegisterUser(user)
	return true
}

// open lets builds in through door.
func (c *natsClients) open(door *natsaccess.Door) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.door = door
}

// admit lets the workflow worker of a build in and returns its name and its password.
func (c *natsClients) admit(app wire.App, build string) *url.Userinfo {
	name := wire.WorkflowQueue(app.Name, build)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.builds[name] = wire.BuildSubjects(app)
	return url.UserPassword(name, c.keys.BuildToken(name))
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
