package function

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AccessKeyID names the key with which requests to a [Host] are signed; its secret is [Options.Secret].
const AccessKeyID = "spillway"

const (
	algorithm  = "AWS4-HMAC-SHA256"
	service    = "lambda"
	scopeEnd   = "aws4_request"
	timeLayout = "20060102T150405Z"
	dateHeader = "X-Amz-Date"
	hashHeader = "X-Amz-Content-Sha256"
	awsHeaders = "X-Amz-"
	hexDigits  = "0123456789ABCDEF"
	// clockSkew is how far the clock of a caller may be from this machine's, as on AWS.
	clockSkew = 15 * time.Minute
)

// signature is what a request says of its Signature Version 4:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html.
type signature struct {
	time  string   // of signing, as in X-Amz-Date
	scope string   // day/region/lambda/aws4_request
	names []string // of the headers that it covers, in lower case, in its own order
	value []byte
}

// parseSignature returns the signature of r, or why it cannot be a good one at the time now.
func parseSignature(r *http.Request, now time.Time) (signature, error) {
	credential, s, err := parseAuthorization(r.Header.Get("Authorization"))
	if err != nil {
		return signature{}, err
	}
	id, scope, _ := strings.Cut(credential, "/")
	parts := strings.Split(scope, "/")
	if len(parts) != 4 || parts[2] != service || parts[3] != scopeEnd {
		return signature{}, errIncomplete("its Credential is not ID/day/region/" + service + "/" + scopeEnd)
	}
	if id != AccessKeyID {
		return signature{}, &apiError{
			status: http.StatusForbidden, code: "UnrecognizedClientException",
			message: fmt.Sprintf("The access key %.40q is not the key of this function host, which is %q with the secret "+
				"that its engine keeps to itself.", id, AccessKeyID),
		}
	}
	s.scope, s.time = scope, r.Header.Get(dateHeader)
	if err := s.checkTime(parts[0], now); err != nil {
		return signature{}, err
	}
	return s, s.checkNames(r)
}

// parseAuthorization reads the header Authorization.
func parseAuthorization(header string) (credential string, s signature, err error) {
	rest, found := strings.CutPrefix(header, algorithm+" ")
	if !found {
		return "", s, errUnsigned()
	}
	var value string
	for field := range strings.SplitSeq(rest, ",") {
		switch name, text, _ := strings.Cut(strings.TrimSpace(field), "="); name {
		case "Credential":
			credential = text
		case "SignedHeaders":
			s.names = strings.Split(text, ";")
		case "Signature":
			value = text
		}
	}
	if s.value, err = hex.DecodeString(value); err != nil || len(s.value) != sha256.Size {
		return "", s, errIncomplete("its Signature is not 64 hexadecimal digits")
	}
	return credential, s, nil
}

// checkTime refuses a signature that was not made now, on the day that its scope names.
func (s signature) checkTime(day string, now time.Time) error {
	at, err := time.Parse(timeLayout, s.time)
	if err != nil || s.time[:len("20060102")] != day {
		return errIncomplete("its header X-Amz-Date is not a time like " + timeLayout + " on the day of its Credential")
	}
	if skew := now.Sub(at); skew.Abs() > clockSkew {
		what := "Signature expired"
		if skew < 0 {
			what = "Signature not yet current"
		}
		return errSignature(fmt.Sprintf("%s: it was made at %s, and here it is %s; they may differ by %d minutes: "+
			"set the clock of the caller or of this machine right", what, s.time, now.UTC().Format(timeLayout),
			int(clockSkew.Minutes())))
	}
	return nil
}

// checkNames refuses a signature that leaves out what a request says to this host.
func (s signature) checkNames(r *http.Request) error {
	if !slices.Contains(s.names, "host") {
		return errIncomplete("it does not cover the header host")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, awsHeaders) && !slices.Contains(s.names, strings.ToLower(name)) {
			return errIncomplete(fmt.Sprintf("it does not cover the header %.80q", strings.ToLower(name)))
		}
	}
	return nil
}

// verify reports whether who signed r knew the secret and meant a body with this digest, in hexadecimal digits. It
// takes the same time whatever is wrong with the signature.
func (s signature) verify(r *http.Request, secret, digest string) bool {
	request := sha256.Sum256([]byte(s.canonical(r, digest)))
	text := strings.Join([]string{algorithm, s.time, s.scope, hex.EncodeToString(request[:])}, "\n")
	key := []byte("AWS4" + secret)
	for part := range strings.SplitSeq(s.scope, "/") {
		key = keyedHash(key, part)
	}
	return hmac.Equal(keyedHash(key, text), s.value)
}

func keyedHash(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// canonical returns r in the one form that both sides hash.
func (s signature) canonical(r *http.Request, digest string) string {
	var b strings.Builder
	b.WriteString(r.Method + "\n")
	b.WriteString(escape(cmp.Or(r.URL.EscapedPath(), "/"), "/") + "\n")
	b.WriteString(canonicalQuery(r.URL.Query()) + "\n")
	for _, name := range s.names {
		b.WriteString(name + ":" + canonicalHeader(r, name) + "\n")
	}
	b.WriteString("\n" + strings.Join(s.names, ";") + "\n" + digest)
	return b.String()
}

// canonicalHeader returns the values of a header, whose name is in lower case.
func canonicalHeader(r *http.Request, name string) string {
	switch name {
	case "host": // net/http takes these two out of the headers
		return r.Host
	case "content-length":
		return strconv.FormatInt(r.ContentLength, 10)
	}
	values := slices.Clone(r.Header.Values(name))
	for i, value := range values {
		values[i] = strings.Join(strings.FieldsFunc(value, func(c rune) bool { return c == ' ' }), " ")
	}
	return strings.Join(values, ",")
}

// canonicalQuery returns the parameters of a query in the order of their escaped names and values.
func canonicalQuery(query url.Values) string {
	type pair struct{ name, value string }
	var pairs []pair
	for name, values := range query {
		for _, value := range values {
			pairs = append(pairs, pair{escape(name, ""), escape(value, "")})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.value, b.value))
	})
	text := make([]string, len(pairs))
	for i, p := range pairs {
		text[i] = p.name + "=" + p.value
	}
	return strings.Join(text, "&")
}

// escape writes all but unreserved characters (RFC 3986), and those in also, as their bytes in hexadecimal digits.
func escape(text, also string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-._~"+also, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
	}
	return b.String()
}
