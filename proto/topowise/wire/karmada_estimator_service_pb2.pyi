from topowise.wire import karmada_estimator_pb2 as _karmada_estimator_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
