//go:build linux

package hostscheck_test

import "testing"

func TestZZServers(t *testing.T) {
	need(t)
	n := newNetwork(t)
	at := n.host("server")
	s := startServers(t, n, at)
	f, e := s.flags(at)
	t.Log(f, e)
	t.Log(s.stream(at).AccountInfo(t.Context()))
}
