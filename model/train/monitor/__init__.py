"""Monitoring: logs, throughput, gradient norms, warnings, profiles, hang detection."""
