// Package join has what a host and a server say to each other when the host joins, and how each knows the other; and
// what another server says that is to be one of the same stack.
//
// Both are shown by one token, which the server prints and the owner of the host carries over: the digest of the
// certificate of the server's authority, and the join secret. So the host knows the server before it shows the secret,
// and needs no certificate beforehand, as with kubeadm's discovery hash:
// https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#token-based-discovery-with-ca-pinning
//
// With the answer the host has a token of its own, which counts until it is removed: later it shows that one, also when
// it joins again, and the other can be made anew.
package join

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Path is where a host joins: POST, with a Request as JSON and, as bearer, the secret of a Token or the host's own
// token (Answer.Token). The answer is an Answer, or an error as all of the API are.
const Path = "/api/v1/hosts/join"

// UserPrefix begins the name with which a host connects to NATS, and its own name follows; the password is its token.
const UserPrefix = "host:"

// Protocol is what a client of NATS offers as application protocol (ALPN) at the TLS port of a server. It has to shake
// hands first (nats.TLSHandshakeFirst).
const Protocol = "nats"

// MaxClockGap is how far the clocks of a host and of a server may be apart: what happens is ordered by when it did.
const MaxClockGap = 30 * time.Second

// UsualLease is the lease of a server of a version before, which does not tell it.
const UsualLease = 5 * time.Second

// Request is what a host says when it starts, whether for the first time or not.
type Request struct {
	// Host is its name, of which CheckName says what it may be.
	Host string `json:"host"`
	// Instance names this start of the host: no other has the same. Two that live at a time with one name are told apart
	// by it.
	Instance string `json:"instance"`
	// Version is that of its program.
	Version string `json:"version"`
	// Platform is what its program was built for, as "linux/amd64".
	Platform string `json:"platform"`
	// Capacity is what it offers, as far as it knows yet; its lease tells the rest.
	Capacity quantity.Size `json:"capacity"`
	// At is when it asks, by its own clock.
	At time.Time `json:"at"`
	// Proves says that it shows of each attempt of which it tells that it was given it. One of a version before does not,
	// and is let in; one that has, has to from then on.
	Proves bool `json:"proves,omitempty"`
	// Former is the instance that this one follows, and knows to have ended, with all that it ran: it has the lock of the
	// same directory on the same machine. Empty where it does not know.
	Former string `json:"former,omitempty"`
}

// First is the request with what servers of the first version know, which refuse all else: those since leave it out.
func (r Request) First() Request {
	r.Proves, r.Former = false, ""
	return r
}

// Answer is what a host that was let in works with. It holds a secret.
type Answer struct {
	// Host is its name.
	Host string `json:"host"`
	// Token is what it shows from now on: as bearer to the API and to Temporal, as password to NATS. It is the same until
	// the host joins with the secret again or is removed.
	Token string `json:"token"`
	// API is the URL of the API, of artifacts and of builds, without a final slash.
	API string `json:"api"`
	// Servers are the hosts and ports of all servers of the stack, each with the API, NATS and Temporal as Temporal below;
	// the one that answers first. Empty from a server that is of an earlier version: it is the only one.
	Servers []string `json:"servers,omitempty"`
	// NATS are the URLs of NATS; NATSUser is the name to connect with. Clients offer Protocol.
	NATS     []string `json:"nats"`
	NATSUser string   `json:"nats_user"`
	// OwnPlan says that what the host obeys of the plan lies under a key of its own, wire.HostPlanPrefix and its name;
	// else it reads all of it.
	OwnPlan bool `json:"own_plan,omitempty"`
	// Temporal is the host and port of Temporal's frontend, over TLS, and Namespace the namespace of the stages' queues.
	Temporal  string `json:"temporal"`
	Namespace string `json:"namespace"`
	// CA is the certificate, as PEM, that all three are verified with, and nothing else.
	CA string `json:"ca"`
	// ResultsKey is the key, in hexadecimal digits, that results of the engine are verified with (Ed25519).
	ResultsKey string `json:"results_key"`
	// Lease is for how long the server takes the host to be there after it has said so; 0 means UsualLease.
	Lease time.Duration `json:"lease_ns,omitempty"`
	// Version is that of the server.
	Version string `json:"version"`
	// At is when it answers, by the server's clock.
	At time.Time `json:"at"`
}

// MaxName is the length of the longest name of a host, in bytes: that of a name of DNS (RFC 1035).
const MaxName = 253

var name = regexp.MustCompile(`^[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-_A-Za-z0-9]*[A-Za-z0-9])?)*$`)

// CheckName says why a host cannot have a name; nil where it can. It is a part of subjects of NATS.
func CheckName(host string) error {
	if len(host) <= MaxName && name.MatchString(host) {
		return nil
	}
	return fmt.Errorf("a host cannot be called %.80q: a name has letters, digits, dashes and dots, begins and ends with "+
		"a letter or a digit, and has at most %d characters", host, MaxName)
}

// CheckVersions says why a host of one version does not work with a server of another; nil where it does. Both may be
// one minor version apart, as in 0.4.2 and 0.5.0, so that one after the other can be upgraded. What was built from
// sources, "dev" or a pseudo-version, has no such number and works with everything of today.
func CheckVersions(host, server string) error {
	h, known := minor(host)
	s, told := minor(server)
	if !known || !told {
		return nil
	}
	switch {
	case h.major != s.major || h.minor > s.minor+1:
		return fmt.Errorf("the host has version %s, and the server %s: install %s on the host", host, server, server)
	case h.minor+1 < s.minor:
		return fmt.Errorf("the host has version %s, which the server, of version %s, does not know any more: install %s "+
			"on the host", host, server, server)
	default:
		return nil
	}
}

type numbers struct{ major, minor int }

var release = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+$`)

func minor(version string) (n numbers, known bool) {
	plain, _, _ := strings.Cut(version, "+")
	if !release.MatchString(plain) {
		return n, false
	}
	_, err := fmt.Sscanf(strings.TrimPrefix(plain, "v"), "%d.%d", &n.major, &n.minor)
	return n, err == nil
}

// CheckClocks says that a host's clock differs too much from the server's; nil where it does not. A host that sends no
// time is not checked.
func CheckClocks(host, server time.Time) error {
	gap := host.Sub(server)
	if host.IsZero() || gap.Abs() <= MaxClockGap {
		return nil
	}
	how := "ahead of"
	if gap < 0 {
		how = "behind"
	}
	return fmt.Errorf("the clock of the host is %s %s the server's: set both by NTP (timedatectl set-ntp true)",
		gap.Abs().Round(time.Second), how)
}
