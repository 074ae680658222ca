// Package accesstest has credentials for tests.
package accesstest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
)

// Keys returns the keys of a state directory that is no more: the same ones throughout a test process.
var Keys = sync.OnceValue(func() *access.Keys {
	dir, err := os.MkdirTemp("", "spillway-keys-")
	if err != nil {
		panic(err)
	}
	keys, err := access.Open(dir)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		panic(err)
	}
	return keys
})

// Show makes a request the owner's.
func Show(r *http.Request) *http.Request {
	r.Header.Set("Authorization", "Bearer "+Keys().Token())
	return r
}

// Arrived makes a request one that a server of 127.0.0.1 has taken in at this port: for handlers that are called
// without a server.
func Arrived(r *http.Request, port int) *http.Request {
	r.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey,
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}))
}

// Tokens returns a new store of tokens for others than the owner.
func Tokens(tb testing.TB) *access.Tokens {
	tb.Helper()
	return access.OpenTokens(documents.Local())
}
