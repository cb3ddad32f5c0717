from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_FITS: _ClassVar[Verdict]
    VERDICT_UNSCHEDULABLE: _ClassVar[Verdict]
    VERDICT_UNRESOLVABLE: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_FITS: Verdict
VERDICT_UNSCHEDULABLE: Verdict
VERDICT_UNRESOLVABLE: Verdict

class FilterRequest(_message.Message):
    __slots__ = ("pod", "nodes", "templates")
    POD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    pod: bytes
    nodes: _containers.RepeatedScalarFieldContainer[str]
    templates: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, pod: _Optional[bytes] = ..., nodes: _Optional[_Iterable[str]] = ..., templates: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FilterResponse(_message.Message):
    __slots__ = ("verdicts", "reason_index", "reasons")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    REASON_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedScalarFieldContainer[Verdict]
    reason_index: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, str]]] = ..., reason_index: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("pod", "nodes", "templates")
    POD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    pod: bytes
    nodes: _containers.RepeatedScalarFieldContainer[str]
    templates: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, pod: _Optional[bytes] = ..., nodes: _Optional[_Iterable[str]] = ..., templates: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scores: _Optional[_Iterable[int]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("pod", "nodes")
    POD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    pod: bytes
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pod: _Optional[bytes] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("verdicts", "scores", "details", "not_looked_at")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    NOT_LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedScalarFieldContainer[Verdict]
    scores: _containers.RepeatedScalarFieldContainer[int]
    details: _containers.RepeatedScalarFieldContainer[str]
    not_looked_at: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, str]]] = ..., scores: _Optional[_Iterable[int]] = ..., details: _Optional[_Iterable[str]] = ..., not_looked_at: _Optional[_Iterable[str]] = ...) -> None: ...

class FitTogetherRequest(_message.Message):
    __slots__ = ("pods", "count", "nodes", "reserve_seconds", "release")
    PODS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    pods: _containers.RepeatedScalarFieldContainer[bytes]
    count: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    reserve_seconds: int
    release: str
    def __init__(self, pods: _Optional[_Iterable[bytes]] = ..., count: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., reserve_seconds: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class FitTogetherResponse(_message.Message):
    __slots__ = ("fits", "nodes", "why", "reservation", "not_examined")
    FITS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    NOT_EXAMINED_FIELD_NUMBER: _ClassVar[int]
    fits: bool
    nodes: _containers.RepeatedScalarFieldContainer[str]
    why: str
    reservation: str
    not_examined: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fits: bool = ..., nodes: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ..., reservation: _Optional[str] = ..., not_examined: _Optional[_Iterable[str]] = ...) -> None: ...
