//go:build linux

package hostscheck_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// refusal is a setting that cannot be, and what is said about it.
type refusal struct {
	name        string
	change      settings
	environment []string // beside that by which the engine is known at S3
	want        []string
}

// refuses starts a server with each of some settings that cannot be: it says so in one line with what to do, and ends.
// No process of it is left, and nothing that keeps the server from starting later with those that can. The main module
// has tests of what needs no server of another maker: an older Temporal, keys that there are not, settings that do not
// go together, hosts of one name, clocks that are apart.
func (f *field) refuses(t *testing.T) {
	t.Helper()
	f.adopt(t)
	h, n := f.at[0], f.network()
	other := newAuthority(t, t.TempDir())
	past := f.authority.issue(h, "past", -day/24)
	file := func(name, text string) string { return h.write(name, []byte(text+"\n"), 0o600) }
	nobody := "https://" + subnet + "250"
	plain := f.servers.plainNATS(n.host("plain"))
	for _, one := range []refusal{
		{"nobody is at Temporal's address", settings{"temporal-address": subnet + "250:7233"}, nil, []string{
			"connect to Temporal at " + subnet + "250:7233", "--temporal-address",
		}},
		{"Temporal's authority is not known", settings{"temporal-tls-ca": other.file}, nil, []string{"--temporal-tls-ca"}},
		{
			"Temporal is shown an expired certificate",
			settings{"temporal-tls-certificate": past.certificate, "temporal-tls-key": past.key},
			nil,
			[]string{past.certificate, "expired"},
		},
		{
			"Temporal is shown no certificate",
			settings{"temporal-tls-certificate": nil, "temporal-tls-key": nil},
			nil,
			[]string{"--temporal-tls-certificate"},
		},
		{"there is no such namespace", settings{"temporal-namespace": "elsewhere"}, nil, []string{
			`no namespace "elsewhere"`, "temporal operator namespace create",
		}},
		{"nobody is at NATS's address", settings{"nats-url": "tls://" + subnet + "250:4222"}, nil, []string{
			"connect to NATS at tls://" + subnet + "250:4222", "--nats-url",
		}},
		{"NATS's authority is not known", settings{"nats-tls-ca": other.file}, nil, []string{"--nats-tls-ca"}},
		{"the password of NATS is wrong", settings{"nats-credentials": file("wrong", natsUser+":wrong")}, nil, []string{
			"does not take the credentials in", "--nats-credentials",
		}},
		{"NATS has no JetStream", settings{"nats-url": plain}, nil, []string{"has no JetStream", "store_dir"}},
		{"nobody is at S3's address", settings{"artifacts": f.servers.location(bucket, nobody)}, nil, []string{
			"S3 does not answer", nobody,
		}},
		{"S3's authority is not known", nil, []string{"AWS_CA_BUNDLE=" + other.file}, []string{
			"S3 does not answer", "AWS_CA_BUNDLE",
		}},
		{
			"there is no such bucket",
			settings{"artifacts": f.servers.location("elsewhere", f.servers.s3URL())},
			nil,
			[]string{"no such bucket: elsewhere"},
		},
		{"the key of S3 is wrong", nil, []string{"AWS_SECRET_ACCESS_KEY=wrong"}, []string{"AWS_SECRET_ACCESS_KEY"}},
		{"the bucket is not the user's", nil, f.servers.stranger(), []string{
			"S3 does not allow it", "s3:PutObject",
		}},
		{
			"the password of the ledger is wrong",
			settings{"ledger-url-file": file("ledger-wrong", f.servers.ledgerURL("wrong"))},
			nil,
			[]string{"ledger", "password"},
		},
		{
			"nobody is at the ledger's address",
			settings{"ledger-url-file": file("ledger-nobody", strings.Replace(f.servers.ledgerURL("sesame"),
				f.servers.database.address+":", subnet+"250:", 1))},
			nil,
			[]string{"ledger", subnet + "250"},
		},
		{"there are fewer servers of NATS than replicas", settings{"nats-replicas": nodes + 2}, nil, []string{
			"--nats-replicas",
		}},
		{"the certificate of the port is expired", settings{
			"tls-certificate": past.certificate, "tls-key": past.key,
		}, nil, []string{"expired", past.certificate}},
	} {
		t.Run(one.name, func(t *testing.T) { f.wantRefused(t, one) }) //nolint:paralleltest // they share the hosts
		f.adopt(t)
	}
}

// wantRefused starts a server with settings that cannot be.
func (f *field) wantRefused(t *testing.T, one refusal) {
	t.Helper()
	f.adopt(t)
	h := f.at[0]
	path := f.settings.but(f.own(h)).but(one.change).write(h, "wrong.yaml")
	server := spillway("server", "--config", path)
	server.environment = append(f.servers.identity(), one.environment...)
	text, code := h.run(server)
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "warning: ") && !strings.HasPrefix(line, "hint: ") {
			lines = append(lines, line)
		}
	}
	if code == 0 || len(lines) != 1 {
		t.Errorf("the server ended with exit code %d and %d lines, want a failure and one line:\n%s", code, len(lines), text)
	}
	for _, want := range one.want {
		if !strings.Contains(text, want) {
			t.Errorf("the server does not say %q:\n%s", want, text)
		}
	}
	for _, secret := range []string{f.servers.natsPassword, f.servers.secretKey, f.servers.ledgerPassword, "sesame"} {
		if strings.Contains(text, secret) {
			t.Errorf("the server tells a secret:\n%s", text)
		}
	}
	if left, err := processesIn(h.namespace); err != nil || len(left) > 0 {
		t.Errorf("processes %v are left, %v", left, err)
	}
	if exists(filepath.Join(h.dir, "state", "stack.json")) {
		t.Error("it says where a stack is that has not started")
	}
}

// plainNATS starts a server of NATS without JetStream, and returns its URL.
func (s *servers) plainNATS(h *host) (url string) {
	s.t.Helper()
	certificate := s.authority.issue(h, "nats", day)
	text, err := json.Marshal(map[string]any{
		"listen": h.address + ":4222", "authorization": map[string]any{"user": natsUser, "password": s.natsPassword},
		"tls": map[string]any{
			"cert_file": certificate.certificate, "key_file": certificate.key, "ca_file": s.authority.file,
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	file := h.write("nats.conf", text, 0o600)
	h.start("nats", program{path: filepath.Join(bin, "nats-server"), arguments: []string{"-c", file}}).answers("4222")
	return "tls://" + h.address + ":4222"
}
