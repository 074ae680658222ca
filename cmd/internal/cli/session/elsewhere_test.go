package session_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
)

// TestAServerOfItsOwnAuthorityIsAskedWithATokenOfTheEnvironment asks one that takes no token: what is said to do is
// what helps.
func TestAServerOfItsOwnAuthorityIsAskedWithATokenOfTheEnvironment(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error":{"message":"shown ` + r.Header.Get("Authorization") + `"}}`))
	}))
	t.Cleanup(server.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authority, text, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		variables map[string]string
		code      int
		want      []string
	}{
		"nothing": {nil, cli.ExitFailure, []string{"has not let you in", "spillway login --server " + server.URL}},
		"a token": {map[string]string{"SPILLWAY_TOKEN": "x"}, cli.ExitFailure, []string{"certificate"}},
		"a token, and whose the certificate is": {
			map[string]string{"SPILLWAY_TOKEN": "x", "SPILLWAY_TLS_CA": authority},
			cli.ExitFailure,
			[]string{"shown Bearer x", "hint: it was shown the token in SPILLWAY_TOKEN"},
		},
		"a file that is not there": {
			map[string]string{"SPILLWAY_TOKEN": "x", "SPILLWAY_TLS_CA": authority + "x"},
			cli.ExitUsage,
			[]string{"SPILLWAY_TLS_CA: ", "hint: give a file of certificates in PEM"},
		},
		"a file without a certificate": {
			map[string]string{"SPILLWAY_TOKEN": "x", "SPILLWAY_TLS_CA": empty},
			cli.ExitUsage,
			[]string{"has no certificate in PEM"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			deps := cli.Deps{Environment: func(variable string) (string, bool) {
				if variable == "HOME" {
					return home, true
				}
				value, set := c.variables[variable]
				return value, set
			}}
			code, _, stderr := clitest.Execute(t, t.Context(), deps, "runs", "--server", server.URL)
			if code != c.code {
				t.Errorf("got exit %d, want %d", code, c.code)
			}
			clitest.Contains(t, "standard error", stderr, c.want...)
		})
	}
}
