package function

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"pgregory.net/rapid"
)

func TestAttackNothingButWhatTheSDKSignsIsVerified(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		sum := sha256.Sum256(body)
		digest := hex.EncodeToString(sum[:])
		text := rapid.String()
		target := url.URL{
			Scheme: "http", Host: "127.0.0.1:7",
			RawQuery: url.Values(rapid.MapOf(text, rapid.SliceOfN(text, 1, 3)).Draw(t, "query")).Encode(),
		}
		target.Path = "/2015-03-31/functions/" + text.Draw(t, "name")
		if rapid.Bool().Draw(t, "slashes within a name are escaped") {
			target.RawPath = "/2015-03-31/functions/" + url.PathEscape(target.Path[len("/2015-03-31/functions/"):])
		}
		method := rapid.SampledFrom([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}).
			Draw(t, "method")
		var reader io.Reader = bytes.NewReader(body)
		if rapid.Bool().Draw(t, "streamed") {
			reader = io.MultiReader(reader)
		}
		sent, err := http.NewRequest(method, target.String(), reader)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range rapid.SliceOfN(rapid.StringMatching(`[ -~]{0,20}`), 0, 3).Draw(t, "values") {
			sent.Header.Add("X-Amz-Log-Type", value)
		}
		key := aws.Credentials{AccessKeyID: AccessKeyID, SecretAccessKey: rapid.StringN(1, 50, -1).Draw(t, "secret")}
		if err := v4.NewSigner().SignHTTP(t.Context(), key, sent, digest, "lambda", "eu-central-1", now); err != nil {
			t.Fatal(err)
		}
		var wire bytes.Buffer
		if err := sent.Write(&wire); err != nil {
			t.Fatal(err)
		}
		got, err := http.ReadRequest(bufio.NewReader(&wire))
		if err != nil {
			t.Fatalf("%v: %q", err, wire.String())
		}
		s, err := parseSignature(got, now)
		if err != nil {
			t.Fatal(err)
		}
		if !s.verify(got, key.SecretAccessKey, digest) {
			t.Errorf("not verified: %s", s.canonical(got, digest))
		}
		if s.verify(got, key.SecretAccessKey+"x", digest) ||
			s.verify(got, key.SecretAccessKey, hex.EncodeToString(make([]byte, sha256.Size))) {
			t.Error("verified with another secret, or another body")
		}
		got.URL.Path, got.URL.RawPath = got.URL.Path+"x", ""
		if s.verify(got, key.SecretAccessKey, digest) {
			t.Error("verified with another path")
		}
	})
}

func TestQueriesAreHashedInTheOrderOfTheirEscapedForm(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                    "",
		"b=2&a=1&a=0":         "a=0&a=1&b=2",
		"a/b=1&a-b=2":         "a%2Fb=1&a-b=2", // not in the order of what they stand for
		"q=a+b%2Bc&Action=Li": "Action=Li&q=a%20b%2Bc",
		"flag":                "flag=",
	} {
		query, err := url.ParseQuery(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := canonicalQuery(query); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
