package devserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/external"
)

const (
	// joinTimeout bounds the first connection to the others, and joinPause is between two looks at it.
	joinTimeout = 10 * time.Second
	joinPause   = 20 * time.Millisecond
	// rejoinPause is between two tries to connect again.
	rejoinPause = time.Second
)

// lean makes a server a leaf node, without a store of its own.
func lean(ctx context.Context, leaf *external.Leaf, options *natsserver.Options) error {
	var err error
	for _, address := range leaf.URLs { // the server itself tells only its log what is wrong with an address
		var connection net.Conn
		if connection, err = new(net.Dialer).DialContext(ctx, "tcp", address.Host); err == nil {
			err = connection.Close()
			break
		}
	}
	if err != nil {
		return fmt.Errorf("connect to NATS as a leaf node: %w; look at --nats-leaf-url, and whether the servers have a "+
			"block leafnodes with a port", err)
	}
	options.LeafNode.ReconnectInterval = rejoinPause
	natsaccess.Join(options, natsserver.RemoteLeafOpts{
		URLs: leaf.URLs, Credentials: leaf.CredentialsFile, Nkey: leaf.Seed, TLS: leaf.TLS != nil, TLSConfig: leaf.TLS,
	})
	return nil
}

// errApart says that a leaf node is not connected.
var errApart = errors.New("it is not connected to the servers that it is a leaf node of: they do not answer, or do " +
	"not let it in; it tries again every second, and the log has what they say")

// joined reports whether a leaf node is connected.
func (n *natsServer) joined() error {
	if n.server.NumLeafNodes() == 0 {
		return errApart
	}
	return nil
}

// join waits for the first connection of a leaf node.
func (n *natsServer) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	err := n.ready(ctx, joinTimeout)
	for errors.Is(err, errApart) && wait.For(ctx, joinPause) {
		err = n.ready(ctx, joinTimeout)
	}
	return err
}
