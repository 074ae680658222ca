// Package hostscheck runs Spillway on several hosts, on servers that exist, and through what can befall them. It is a
// module of its own, so that those servers are in no product binary.
package hostscheck
