package oidccheck

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/oidccheck/provider"
)

// TestConfigCheckTriesTheProvider has settings tried that are right, and each that is wrong.
func TestConfigCheckTriesTheProvider(t *testing.T) {
	t.Parallel()
	running, gone := provider.Start(t), provider.Start(t)
	gone.Stop()
	secret := secretFile(t, provider.Secret)
	for _, c := range []struct {
		name, issuer, roles string
		code                int
		want                string
	}{
		{"right", running.Issuer, "[ml=admin, 'vision=operator:vision']", 0, "people sign in at " + running.Issuer},
		{"another issuer", running.Issuer + "/", "[ml=admin]", 1, "write --oidc-issuer exactly as the provider does"},
		{"a page of it", running.Issuer + "/realms/x", "[ml=admin]", 1, "stands before /.well-known/openid-configuration"},
		{"nobody answers", gone.Issuer, "[ml=admin]", 1, "the identity provider cannot be asked"},
		{"no TLS", "http://sso.example.com", "[ml=admin]", 1, "is not reached over TLS"},
		{"no role", running.Issuer, "[ml=root]", 1, `spillway.yaml:4:13  oidc-role "ml=root": there is no such role`},
		{"a group twice", running.Issuer, "[ml=admin, ml=viewer]", 1, "there is a rule for that group already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "spillway.yaml")
			text := fmt.Sprintf("oidc-issuer: %s\noidc-client-id: spillway\noidc-client-secret-file: %s\noidc-role: %s\n",
				c.issuer, secret, c.roles)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			line := &commandLine{t: t, home: dir}
			var said bytes.Buffer
			code, out := line.run(&said, "config", "check", file, "--state", filepath.Join(dir, "state"))
			if all := out + said.String(); code != c.code || !strings.Contains(all, c.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, c.code, c.want, all)
			}
		})
	}
}
