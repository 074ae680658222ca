// Package gang connects the processes of one attempt on several hosts: what each is told of the others, and connections
// between them that nobody else can make or read.
package gang

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Host is a host of a gang.
type Host struct {
	// Name is the host's in the pool.
	Name string `json:"name"`
	// Address is the IP address at which others reach its processes, and Port where its member listens; 0 for the first.
	Address string `json:"address"`
	Port    int    `json:"port,omitempty"`
}

// Told is what a process is told of the gang that it is in. It holds a secret.
type Told struct {
	// Number is that of its host, from 0.
	Number int `json:"number"`
	// Secret is what the hosts know each other by.
	Secret string `json:"secret"`
	// Hosts are all of them, the first one first.
	Hosts []Host `json:"hosts"`
}

// Descriptors of a program in a gang: see [wire.GangEnvironment].
const (
	toldDescriptor   = 5
	listenDescriptor = 6
)

// mostTold bounds what a process is told.
const mostTold = 64 << 10

// Gang is the gang that this process is in.
type Gang struct {
	Told

	// Listener takes connections of the first host; nil on that.
	Listener net.Listener
}

// FromCommand returns the gang that this process is in, as the program of an attempt; nil without one. It may be called
// once: what is told is read then, and no process that is started later can.
func FromCommand(lookup func(string) (string, bool)) (*Gang, error) {
	if _, is := lookup(wire.GangEnvironment); !is {
		return nil, nil //nolint:nilnil // an attempt on one host is in no gang
	}
	file := os.NewFile(toldDescriptor, "gang")
	text, err := io.ReadAll(io.LimitReader(file, mostTold))
	err = errors.Join(err, file.Close())
	var g Gang
	if err == nil {
		err = json.Unmarshal(text, &g.Told)
	}
	if err == nil && (g.Number < 0 || g.Number >= len(g.Hosts) || g.Secret == "") {
		err = fmt.Errorf("host %d of %d", g.Number, len(g.Hosts))
	}
	if err != nil {
		return nil, fmt.Errorf("read what descriptor %d tells of the gang: %w", toldDescriptor, err)
	}
	if g.Number == 0 {
		return &g, nil
	}
	syscall.CloseOnExec(listenDescriptor)
	socket := os.NewFile(listenDescriptor, "listener")
	listener, err := net.FileListener(socket)
	if err = errors.Join(err, socket.Close()); err != nil {
		return nil, fmt.Errorf("listen for the gang on descriptor %d: %w", listenDescriptor, err)
	}
	config, err := mutual(g.Secret)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	g.Listener = tls.NewListener(listener, config)
	return &g, nil
}

const (
	// dialWait bounds how long a connection to another host may take, its handshake included.
	dialWait = 15 * time.Second
	// A host that has vanished is known by that it does not answer for idle and three times every.
	keepIdle, keepEvery, keepCount = 3 * time.Second, time.Second, 3
)

// Dial connects to a host of the gang.
func (t Told) Dial(ctx context.Context, number int) (net.Conn, error) {
	if number < 1 || number >= len(t.Hosts) {
		return nil, fmt.Errorf("there is no host %d in a gang of %d that listens", number, len(t.Hosts))
	}
	config, err := mutual(t.Secret)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepEvery, Count: keepCount},
	}}
	to := t.Hosts[number]
	at := net.TCPAddr{IP: net.ParseIP(to.Address), Port: to.Port}
	conn, err := dialer.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("connect to host %s at %s: %w", to.Name, at.String(), err)
	}
	return conn, nil
}

// mutual is TLS between two that have the same secret, and nobody else: both show the key that is made of it.
func mutual(secret string) (*tls.Config, error) {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, "spillway gang") // a hash takes everything
	key := ed25519.NewKeyFromSeed(mac.Sum(nil))
	own := key.Public().(ed25519.PublicKey) //nolint:forcetypeassert // that of such a key is one
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gang"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0),
	}
	certificate, err := x509.CreateCertificate(nil, template, template, own, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of a gang: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		//nolint:gosec // the other's key is compared with this one's, which is more than a name would tell
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			for _, shown := range state.PeerCertificates {
				if its, is := shown.PublicKey.(ed25519.PublicKey); is && its.Equal(own) {
					return nil
				}
			}
			return errors.New("the other side is not of this gang")
		},
	}, nil
}
