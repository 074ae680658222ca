package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysAreHandedOverToAnEmptyStateDirectory(t *testing.T) {
	t.Parallel()
	first, second := newDir(t), newDir(t)
	keys := open(t, first)
	certificate, err := OpenCertificate(first, CertificateOptions{Names: []string{"a.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := certificate.AuthorityAndKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2]string{
		"no secret": {"", authority}, "half a secret": {keys.Root()[:20], authority}, "no authority": {keys.Root(), "x"},
	} {
		if err := TakeKeys(second, c[0], c[1]); err == nil || strings.Contains(err.Error(), keys.Root()[:20]) {
			t.Errorf("%s: got %v", name, err)
		}
		if has, err := HasKeys(second); has || err != nil {
			t.Errorf("%s: keys were taken, error %v", name, err)
		}
	}
	if err := TakeKeys(second, keys.Root(), authority); err != nil {
		t.Fatal(err)
	}
	if has, err := HasKeys(second); !has || err != nil {
		t.Errorf("no keys are there, error %v", err)
	}
	for _, name := range []string{secretFile, AuthorityFile} {
		if info, err := os.Stat(filepath.Join(second, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, error %v", name, info, err)
		}
	}
	taken := open(t, second)
	if taken.Token() != keys.Token() || !taken.PublicKey().Equal(keys.PublicKey()) {
		t.Error("the credentials are others")
	}
	other, err := OpenCertificate(second, CertificateOptions{Names: []string{"b.example.com"}})
	if err != nil || other.Digest() != certificate.Digest() {
		t.Errorf("its authority is another one, error %v", err)
	}
	if text, genuine := taken.Unseal("x", keys.Seal("x", []byte("hello"))); !genuine || string(text) != "hello" {
		t.Error("what one has sealed the other cannot read")
	}
	if _, genuine := taken.Unseal("y", keys.Seal("x", []byte("hello"))); genuine {
		t.Error("what was sealed for one name counts for another")
	}
	err = TakeKeys(second, keys.Root(), authority)
	if err == nil || !strings.Contains(err.Error(), "empty state directory") {
		t.Errorf("where keys are: got %v", err)
	}
}

func TestTheAuthorityOfSomebodyElseIsNotHandedOver(t *testing.T) {
	t.Parallel()
	c := &Certificate{}
	if text, err := c.AuthorityAndKey(); text != "" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}
