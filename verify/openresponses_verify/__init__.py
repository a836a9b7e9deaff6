"""
Conformance checks for any server of the Responses API.

    openresponses-verify http://localhost:8080/v1
"""
