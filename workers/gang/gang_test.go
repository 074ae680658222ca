package gang

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
)

// TestNobodyElseIsLetIn connects with the secret of the gang and with another one.
func TestNobodyElseIsLetIn(t *testing.T) {
	t.Parallel()
	config, err := mutual("the secret")
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := tls.NewListener(plain, config)
	defer listener.Close() //nolint:errcheck // the test is over
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(conn, "hello") // whoever is not of the gang does not get it
				_ = conn.Close()
			}()
		}
	}()
	at := plain.Addr().(*net.TCPAddr)
	hosts := []Host{{Name: "one", Address: "127.0.0.1"}, {Name: "two", Address: "127.0.0.1", Port: at.Port}}
	for secret, want := range map[string]string{"the secret": "hello", "another one": ""} {
		var got []byte
		conn, err := Told{Secret: secret, Hosts: hosts}.Dial(t.Context(), 1)
		if err == nil {
			got, err = io.ReadAll(conn)
			_ = conn.Close()
		}
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("with %s: %q and %v; want %q", secret, got, err, want)
		}
	}
}
